//! `rm`: functions by name, or all of a stack file. One that is missing does not keep the others.

use std::io;
use std::path::{Path, PathBuf};

use nearpath_stack::{Surroundings, ThisMachine};
use nearpath_types::FunctionId;
use serde::Serialize;

use super::{stack_file, worst};
use crate::api::{Client, Target};
use crate::args::RmArgs;
use crate::exit::{Exit, Outcome};
use crate::output;

#[derive(Serialize)]
struct Row {
    name: String,
    namespace: String,
    removed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(super) fn run(args: &RmArgs) -> Outcome {
    let (mut ids, mut gateway) = (args.names.clone(), None);
    if let Some(file) = &args.file {
        let stack = stack_file::read(file, &NamesOnly(file))?;
        ids = stack.functions.iter().map(nearpath_types::FunctionSpec::id).collect();
        gateway = stack.gateway;
    }
    let client = Client::new(Target::of(&args.connection, gateway.as_deref())?);
    let (mut rows, mut exits) = (Vec::new(), Vec::new());
    for id in &ids {
        let error = match client.remove(id) {
            Ok(()) => None,
            Err(failure) if matches!(failure.exit, Exit::Unreachable | Exit::Unauthorised) => return Err(failure),
            Err(failure) => {
                exits.push(failure.exit);
                Some(failure.text)
            }
        };
        report(id, error.as_deref(), args.json)?;
        rows.push(row(id, error));
    }
    if args.json {
        output::print_json(&rows)?;
    }
    Ok(worst(exits))
}

fn row(id: &FunctionId, error: Option<String>) -> Row {
    Row { name: id.name.to_string(), namespace: id.namespace.to_string(), removed: error.is_none(), error }
}

fn report(id: &FunctionId, error: Option<&str>, json: bool) -> Result<(), crate::exit::Failure> {
    match error {
        Some(error) => eprintln!("nearpath: {error}"),
        None if !json => output::print(&format!("{}: removed\n", id.name))?,
        None => {}
    }
    Ok(())
}

/// To remove functions their folders and environment files need not be there any more: only the stack file itself is read.
struct NamesOnly<'a>(&'a Path);

impl Surroundings for NamesOnly<'_> {
    fn var(&self, name: &str) -> Option<String> {
        ThisMachine.var(name)
    }

    fn file(&self, path: &Path) -> io::Result<String> {
        if path == self.0 { ThisMachine.file(path) } else { Ok(String::new()) }
    }

    fn folder(&self, path: &Path) -> io::Result<PathBuf> {
        std::path::absolute(path)
    }
}
