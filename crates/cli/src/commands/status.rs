//! `paths`, `edges`, `memory`: the state of chains at this moment.

use clap::{Args, Subcommand};
use nearpath_types::chain_status::{EdgeStatus, MemoryStatus, PathStatus};
use nearpath_types::{FunctionId, Namespace, StatusQuery, StatusReport};

use crate::api::{ApiClient, GatewayTarget};
use crate::args::GatewayArgs;
use crate::exit::{CommandError, CommandResult, ExitStatus};
use crate::output::{self, TextTable};

/// Commands that show one report of the node.
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

/// The rows to show.
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
pub struct StatusFilter {
    /// Chain or function; NAME.NAMESPACE in another namespace [default: all of the namespace]
    #[arg(value_name = "CHAIN|FUNCTION")]
    pub name: Option<FunctionId>,
    /// Namespace
    #[arg(short, long, value_name = "NAMESPACE", conflicts_with = "name")]
    pub namespace: Option<Namespace>,
}

/// Shows the report of one command.
pub(super) fn run(command: &StatusCommand) -> CommandResult {
    match command {
        StatusCommand::Paths(args) => show(StatusQuery::Paths, args),
        StatusCommand::Edges(args) => show(StatusQuery::Edges, args),
        StatusCommand::Memory(args) => show(StatusQuery::Memory, args),
    }
}

/// Fetches, filters and prints a report.
pub(super) fn show(query: StatusQuery, args: &StatusArgs) -> CommandResult {
    let client = ApiClient::new(GatewayTarget::from_args(&args.gateway, None)?);
    let report = args.filter.fetch(&client, query)?;
    if let Some(name) = args.filter.name.as_ref().filter(|_| report.is_empty()) {
        let text = format!("no such chain or function: {name}; `nearpath ls` lists functions");
        return Err(CommandError::new(ExitStatus::NotFound, text));
    }
    match args.json {
        true => output::print_json(&report)?,
        false => output::print(&table(&report).render())?,
    }
    Ok(ExitStatus::Ok)
}

impl StatusFilter {
    /// Fetches the rows of a report that match.
    pub(super) fn fetch(
        &self,
        client: &ApiClient,
        query: StatusQuery,
    ) -> Result<StatusReport, CommandError> {
        let named = self.name.as_ref().map(|name| name.namespace.clone());
        let namespace = named.or_else(|| self.namespace.clone()).unwrap_or_default();
        let mut report = client.status(query, &namespace)?;
        if let Some(name) = &self.name {
            report.retain(|row| row.is_about(name));
        }
        Ok(report)
    }
}

fn table(report: &StatusReport) -> TextTable {
    match report {
        StatusReport::Paths(rows) => paths_table(rows),
        StatusReport::Edges(rows) => edges_table(rows),
        StatusReport::Memory(rows) => memory_table(rows),
        StatusReport::Pool(rows) => super::pool::pool_table(rows),
    }
}

fn paths_table(paths: &[PathStatus]) -> TextTable {
    let mut table = TextTable::new(&["CALLER", "INSTANCE", "CALLEE", "INSTANCE", "PATH", "WHY"]);
    for path in paths {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let why = path.why.clone().unwrap_or_default();
        let (from, to) = (
            or_none(&path.caller_instance),
            or_none(&path.callee_instance),
        );
        table.add_row([
            path.caller.clone(),
            from,
            path.callee.clone(),
            to,
            or_none(&path.path),
            why,
        ]);
    }
    table
}

fn edges_table(edges: &[EdgeStatus]) -> TextTable {
    let headings = [
        "CHAIN",
        "CALLER",
        "CALLEE",
        "REQUESTS",
        "FAILED",
        "IN FLIGHT",
        "BYTES",
        "MEAN",
    ];
    let mut table = (3..8).fold(TextTable::new(&headings), TextTable::align_right);
    for edge in edges {
        let numbers = [
            edge.requests,
            edge.failed,
            edge.in_flight,
            edge.call_bytes.saturating_add(edge.answer_bytes),
        ];
        let names = [&edge.chain, &edge.caller, &edge.callee].map(Clone::clone);
        let mean = if edge.requests == 0 {
            "-".to_owned()
        } else {
            format_seconds(edge.seconds / edge.requests as f64)
        };
        table.add_row(
            names
                .into_iter()
                .chain(numbers.map(|number| number.to_string()))
                .chain([mean]),
        );
    }
    table
}

/// A short time in the unit that suits it.
fn format_seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

fn memory_table(chains: &[MemoryStatus]) -> TextTable {
    let headings = ["CHAIN", "FUNCTION", "ENDPOINTS", "SLOTS", "USED", "LIMIT"];
    let mut table = (2..6).fold(TextTable::new(&headings), TextTable::align_right);
    for chain in chains {
        let pages = if chain.page_bytes > 4096 {
            " (huge pages)"
        } else {
            ""
        };
        let all = format!("all{pages}");
        let (endpoints, slots) = chain
            .holders
            .iter()
            .fold((0, 0), |(e, s), h| (e + h.parties, s + h.slots));
        let sizes = [
            format_bytes(chain.used_bytes),
            format_bytes(chain.size_bytes),
        ];
        let numbers = [endpoints.to_string(), slots.to_string()];
        table.add_row(
            [chain.chain.clone(), all]
                .into_iter()
                .chain(numbers)
                .chain(sizes),
        );
        for holder in &chain.holders {
            let numbers = [holder.parties.to_string(), holder.slots.to_string()];
            let sizes = [format_bytes(holder.bytes), format_bytes(holder.bound_bytes)];
            table.add_row(
                [String::new(), holder.function.clone()]
                    .into_iter()
                    .chain(numbers)
                    .chain(sizes),
            );
        }
    }
    table
}

pub(super) fn format_bytes(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        b if b < 1 << 20 => format!("{:.1} KiB", b as f64 / 1024.0),
        b => format!("{:.1} MiB", b as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_a_line_per_row() {
        let path = PathStatus {
            caller: "gateway".into(),
            callee: "a.b".into(),
            ..PathStatus::default()
        };
        let asleep = PathStatus {
            why: Some("a.b is asleep".into()),
            ..path.clone()
        };
        let near = PathStatus {
            path: Some("shm".into()),
            callee_instance: Some("7".into()),
            ..path
        };
        let text = paths_table(&[asleep, near]).render();
        assert!(
            text.contains("gateway  -         a.b     -         -     a.b is asleep\n"),
            "{text}"
        );
        assert!(
            text.contains("gateway  -         a.b     7         shm\n"),
            "{text}"
        );
        let edge = EdgeStatus {
            chain: "shop".into(),
            requests: 4,
            seconds: 0.0001,
            ..EdgeStatus::default()
        };
        let text = edges_table(&[edge]).render();
        assert!(text.ends_with("25.0 µs\n"), "{text}");
    }

    #[test]
    fn numbers_are_formatted_for_people() {
        assert_eq!(
            [format_bytes(0), format_bytes(512), format_bytes(3 << 20)],
            ["0", "0.5 KiB", "3.0 MiB"]
        );
        assert_eq!(
            [
                format_seconds(2e-6),
                format_seconds(0.002),
                format_seconds(2.0)
            ],
            ["2.0 µs", "2.0 ms", "2.0 s"]
        );
    }
}
