//! Stack files: OpenFaaS's format as it is, plus `chains:` and `egress:`, into function specs.
//!
//! In comes a text and the [`StackContext`] that it may look at (variables, files, folders); out comes either a [`StackSpec`] of
//! specs with warnings, or a [`StackReport`] in which no problem hides another, each with file, line, column and what to do.
//!
//! The text walks one way: [`text`] replaces `${VAR}` and remembers where everything was written, [`yaml`] makes nodes that
//! know their places, [`stack_reader`] hands them to [`function`] and [`chain`], which read and check them. Edges and destinations
//! become annotations there (see `nearpath_types::policy`). Files are data from anybody: size, depth and expansion are bounded.
#![forbid(unsafe_code)]

mod chain;
mod context;
mod function;
mod problem;
mod source;
mod stack_reader;
#[cfg(test)]
mod tests;
mod yaml;

use std::io;
use std::path::Path;

use nearpath_types::FunctionSpec;

pub use context::{HostContext, MAX_FILE_BYTES, StackContext};
pub use problem::{ProblemSeverity, StackProblem, StackReport};

use problem::ProblemList;
use source::{SourceSpan, SourceText};
use stack_reader::StackReader;

/// What a stack file asks for.
#[derive(Debug, Clone, Default)]
pub struct StackSpec {
    /// `provider.gateway`.
    pub gateway: Option<String>,
    /// In the order of the file.
    pub functions: Vec<FunctionSpec>,
}

/// A stack file's text and where it stands.
#[derive(Debug, Clone, Copy)]
pub struct StackDocument<'a> {
    /// What problems call it.
    pub name: &'a str,
    /// As it was written.
    pub text: &'a str,
    /// Where relative paths start.
    pub folder: &'a Path,
}

/// A stack that may be deployed, and what is doubtful in its file.
#[derive(Debug, Clone)]
pub struct ParsedStack {
    /// What is asked for.
    pub stack: StackSpec,
    /// Holds warnings only.
    pub warnings: StackReport,
}

/// Why there is no stack.
#[derive(Debug, thiserror::Error)]
pub enum StackReadError {
    /// The file itself cannot be read.
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    /// What is wrong in it.
    #[error("{0}")]
    Invalid(StackReport),
}

/// Reads the stack file at `path`; relative paths in it start at its folder.
///
/// # Errors
/// See [`StackReadError`].
pub fn read_stack(path: &Path, context: &dyn StackContext) -> Result<ParsedStack, StackReadError> {
    let text = context.read_file(path)?;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let document = StackDocument {
        name: &path.display().to_string(),
        text: &text,
        folder,
    };
    parse_stack(document, context).map_err(StackReadError::Invalid)
}

/// Reads a text.
///
/// # Errors
/// When something is wrong in it; the report then holds at least one error, and the warnings too.
pub fn parse_stack(
    document: StackDocument<'_>,
    context: &dyn StackContext,
) -> Result<ParsedStack, StackReport> {
    let lookup = |name: &str| context.variable(name);
    let (source, substitution_problems) = SourceText::new(document.name, document.text, &lookup);
    let mut problems = ProblemList::new(&source);
    for problem in substitution_problems {
        let severity = if problem.is_fatal {
            ProblemSeverity::Error
        } else {
            ProblemSeverity::Warning
        };
        problems.add_problem(
            severity,
            SourceSpan {
                start: problem.start,
                end: problem.end,
            },
            problem.text,
        );
    }
    let root = yaml::parse_yaml(&source, &mut problems);
    let stack = root.map(|root| {
        StackReader {
            folder: document.folder,
            context,
            problems: &mut problems,
        }
        .read_stack(&root)
    });
    if stack.is_none() && problems.problems.is_empty() {
        problems
            .add_error(SourceSpan::default(), "the file is empty")
            .set_help("begin with `functions:`");
    }
    let report = StackReport::sorted(problems.problems);
    match stack {
        Some(stack) if !report.has_errors() => Ok(ParsedStack {
            stack,
            warnings: report,
        }),
        _ => Err(report),
    }
}
