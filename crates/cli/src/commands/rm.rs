//! `rm`: removes functions by name, or all of a stack file. A missing one does not stop the others.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use nearpath_stack::{HostContext, StackContext};
use nearpath_types::{FunctionId, FunctionSpec};
use serde::Serialize;

use super::{first_failure, stack_file};
use crate::api::{ApiClient, GatewayTarget};
use crate::exit::{CommandError, CommandResult, ExitStatus};
use crate::gateway_args::GatewayArgs;
use crate::output;

/// Options of `rm`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct RmArgs {
    /// Name the functions, as NAME or NAME.NAMESPACE
    #[arg(value_name = "NAME", required_unless_present = "file")]
    pub names: Vec<FunctionId>,
    /// Remove every function of a stack file
    #[arg(
        short,
        long,
        visible_alias = "yaml",
        value_name = "FILE",
        conflicts_with = "names"
    )]
    pub file: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// The result for one function; the shape of `--json`.
#[derive(Serialize)]
struct RemoveResult {
    name: String,
    namespace: String,
    removed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(super) fn run(args: &RmArgs) -> CommandResult {
    let (mut ids, mut stack_gateway) = (args.names.clone(), None);
    if let Some(file) = &args.file {
        let stack = stack_file::read(file, &StackFileOnly(file))?;
        ids = stack.functions.iter().map(FunctionSpec::id).collect();
        stack_gateway = stack.gateway;
    }
    let client = ApiClient::new(GatewayTarget::from_args(
        &args.gateway,
        stack_gateway.as_deref(),
    )?);
    let (mut results, mut exits) = (Vec::new(), Vec::new());
    for id in &ids {
        let error = match client.remove(id) {
            Ok(()) => None,
            // These would fail for every other function, too.
            Err(error)
                if matches!(
                    error.exit,
                    ExitStatus::Unreachable | ExitStatus::Unauthorised
                ) =>
            {
                return Err(error);
            }
            Err(error) => {
                exits.push(error.exit);
                Some(error.text)
            }
        };
        // At once, not at the end: a long list shows how far it came.
        print_progress(id, error.as_deref(), args.json)?;
        results.push(result(id, error));
    }
    if args.json {
        output::print_json(&results)?;
    }
    Ok(first_failure(exits))
}

fn result(id: &FunctionId, error: Option<String>) -> RemoveResult {
    RemoveResult {
        name: id.name.to_string(),
        namespace: id.namespace.to_string(),
        removed: error.is_none(),
        error,
    }
}

fn print_progress(id: &FunctionId, error: Option<&str>, json: bool) -> Result<(), CommandError> {
    match error {
        Some(error) => eprintln!("nearpath: {error}"),
        None if !json => output::print(&format!("{}: removed\n", id.name))?,
        None => {}
    }
    Ok(())
}

/// Reads the stack file alone: its folders and environment files may be gone by the time its
/// functions are removed.
struct StackFileOnly<'a>(&'a Path);

impl StackContext for StackFileOnly<'_> {
    fn env_variable(&self, name: &str) -> Option<String> {
        HostContext.env_variable(name)
    }

    fn read_file(&self, path: &Path) -> io::Result<String> {
        if path == self.0 {
            HostContext.read_file(path)
        } else {
            Ok(String::new())
        }
    }

    fn resolve_folder(&self, path: &Path) -> io::Result<PathBuf> {
        std::path::absolute(path)
    }
}
