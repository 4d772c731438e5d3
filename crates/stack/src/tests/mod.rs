//! Valid and invalid stack files, with a context in memory.

mod arbitrary_input;
mod invalid_files;
mod nodes;
mod valid_files;

use std::io;
use std::path::{Path, PathBuf};

use crate::{ParsedStack, StackContext, StackDocument, StackReport, StackSpec, parse_stack};

/// One variable, one environment file and every folder but `./missing`.
struct TestContext;

impl StackContext for TestContext {
    fn env_variable(&self, name: &str) -> Option<String> {
        (name == "SET").then(|| "from-env".to_owned())
    }

    fn read_file(&self, path: &Path) -> io::Result<String> {
        match path.to_str() {
            Some("/stack/env.yml") => Ok("environment:\n  A: file\n  B: 3.10\n".into()),
            Some("/stack/bad.yml") => Ok("environment:\n  A: [1]\n".into()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn resolve_folder(&self, path: &Path) -> io::Result<PathBuf> {
        let clean: PathBuf = path.components().filter(|c| c.as_os_str() != ".").collect();
        if clean.ends_with("missing") {
            Err(io::ErrorKind::NotFound.into())
        } else {
            Ok(clean)
        }
    }
}

fn read_text(text: &str) -> Result<ParsedStack, StackReport> {
    parse_stack(
        StackDocument {
            name: "stack.yml",
            text,
            folder: Path::new("/stack"),
        },
        &TestContext,
    )
}

fn valid_stack(text: &str) -> StackSpec {
    read_text(text)
        .unwrap_or_else(|report| panic!("{report}"))
        .stack
}

/// Errors, or else warnings.
fn report_of(text: &str) -> StackReport {
    read_text(text).map_or_else(|report| report, |parsed| parsed.warnings)
}

/// `LINE:COLUMN: SEVERITY: TEXT` for each problem.
fn problem_lines(text: &str) -> Vec<String> {
    report_of(text)
        .problems
        .iter()
        .map(|p| {
            p.to_string()
                .lines()
                .next()
                .unwrap()
                .trim_start_matches("stack.yml:")
                .to_owned()
        })
        .collect()
}

/// A file with the functions `a`, `b`, `c`, followed by `more`.
fn three_functions(more: &str) -> String {
    format!("functions:\n  a: {{image: x}}\n  b: {{image: x}}\n  c: {{image: x}}\n{more}")
}
