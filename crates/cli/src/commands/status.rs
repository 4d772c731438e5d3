//! `paths`, `edges`, `memory`: reports of all nodes on their chains at this moment.

use clap::{Args, Subcommand};
use nearpath_types::{FunctionId, MissingNode, Namespace, StatusQuery, StatusReport};

use super::missing_nodes::{rows_with_missing, warn_missing};
use super::status_tables::build_table;
use crate::api::{ApiClient, GatewayTarget};
use crate::exit::{CommandError, CommandResult, ExitStatus};
use crate::gateway_args::GatewayArgs;
use crate::output;

/// Commands that show one report of all nodes.
#[derive(Debug, Subcommand)]
#[allow(missing_docs, reason = "the variants' documents are the help texts")]
pub enum StatusCommand {
    /// Show the path chosen for each edge and why no shorter one is available
    Paths(StatusArgs),
    /// Show request, error and byte counters per edge
    Edges(StatusArgs),
    /// Show shared-memory usage per chain and function
    Memory(StatusArgs),
}

/// Options of a command that shows a report.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct StatusArgs {
    #[command(flatten)]
    pub filter: StatusFilter,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Selection of the rows to show.
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
pub struct StatusFilter {
    /// Show only this chain or function; NAME.NAMESPACE in another namespace [default: all of the
    /// namespace]
    #[arg(value_name = "CHAIN|FUNCTION")]
    pub name: Option<FunctionId>,
    /// Show this namespace
    #[arg(short, long, value_name = "NAMESPACE", conflicts_with = "name")]
    pub namespace: Option<Namespace>,
}

/// Runs one of the commands.
pub(super) fn run(command: &StatusCommand) -> CommandResult {
    match command {
        StatusCommand::Paths(args) => show(StatusQuery::Paths, args),
        StatusCommand::Edges(args) => show(StatusQuery::Edges, args),
        StatusCommand::Memory(args) => show(StatusQuery::Memory, args),
    }
}

/// Fetches, filters and prints a report. Fails when no row is about the named chain or function.
pub(super) fn show(query: StatusQuery, args: &StatusArgs) -> CommandResult {
    let client = ApiClient::new(GatewayTarget::from_args(&args.gateway, None)?);
    let (report, missing) = args.filter.fetch(&client, query)?;
    warn_missing(&missing);
    if let Some(name) = args.filter.name.as_ref().filter(|_| report.is_empty()) {
        let text = format!("no such chain or function: {name}; `nearpath ls` lists functions");
        return Err(CommandError::new(ExitStatus::NotFound, text));
    }
    match args.json {
        true if missing.is_empty() => output::print_json(&report)?,
        true => output::print_json(&rows_with_missing(&report, &missing))?,
        false => output::print(&build_table(&report).render())?,
    }
    Ok(ExitStatus::Ok)
}

impl StatusFilter {
    /// Fetches the rows of a report that match.
    pub(super) fn fetch(
        &self,
        client: &ApiClient,
        query: StatusQuery,
    ) -> Result<(StatusReport, Vec<MissingNode>), CommandError> {
        // A name includes its namespace, so clap rejects `--namespace` beside a name.
        let name_namespace = self.name.as_ref().map(|name| name.namespace.clone());
        let namespace = name_namespace
            .or_else(|| self.namespace.clone())
            .unwrap_or_default();
        let (mut report, missing) = client.status(query, &namespace)?;
        if let Some(name) = &self.name {
            report.retain(|row| row.is_about(name));
        }
        Ok((report, missing))
    }
}
