//! Stack files: OpenFaaS's format plus `chains:` and `egress:`, read into function specs.
//!
//! The input is a text and the [`StackContext`] that it may use (variables, files, folders). The
//! result is a [`StackSpec`] with warnings, or a [`StackReport`] in which no problem hides another.
//! Each problem has a file, line, column and correction.
//!
//! The steps: `source` replaces `${VAR}` and remembers where everything was written. `yaml`
//! builds nodes that know their position. `stack_reader` passes them to `function` and
//! `chain`, which read and check them and turn edges and destinations into annotations (see
//! `nearpath_types::policy`). `nodes` reads the list of nodes, `nodes.yml`. Files come from untrusted authors: size, depth and expansion are
//! bounded.
#![forbid(unsafe_code)]

mod chain;
mod context;
mod function;
mod nodes;
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
pub use nodes::{DEFAULT_NODE_PORT, ParsedNodes, parse_nodes, read_nodes};
pub use problem::{ProblemSeverity, StackProblem, StackReport};

use problem::ProblemList;
use source::{SourceSpan, SourceText};
use stack_reader::StackReader;

/// Content of a stack file.
#[derive(Debug, Clone, Default)]
pub struct StackSpec {
    /// `provider.gateway`.
    pub gateway: Option<String>,
    /// Functions, in the order of the file.
    pub functions: Vec<FunctionSpec>,
}

/// Text of a stack file and its location.
#[derive(Debug, Clone, Copy)]
pub struct StackDocument<'a> {
    /// Name in problem reports.
    pub name: &'a str,
    /// Text of the file.
    pub text: &'a str,
    /// Base of relative paths.
    pub folder: &'a Path,
}

/// A stack that may be deployed, with the warnings of its file.
#[derive(Debug, Clone)]
pub struct ParsedStack {
    /// Content of the file.
    pub stack: StackSpec,
    /// Contains only warnings.
    pub warnings: StackReport,
}

/// Reasons why there is no stack.
#[derive(Debug, thiserror::Error)]
pub enum StackReadError {
    /// The file itself cannot be read.
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    /// Problems in the file.
    #[error("{0}")]
    Invalid(StackReport),
}

/// Reads the stack file at `path`. Relative paths in it start at its folder.
///
/// # Errors
/// See [`StackReadError`].
pub fn read_stack(path: &Path, context: &dyn StackContext) -> Result<ParsedStack, StackReadError> {
    let text = context.read_file(path)?;
    // The parent of a bare file name is the empty path, which no system call accepts as a folder.
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

/// Reads a stack file from text.
///
/// # Errors
/// When something is wrong in it; the report then has at least one error, and the warnings.
pub fn parse_stack(
    document: StackDocument<'_>,
    context: &dyn StackContext,
) -> Result<ParsedStack, StackReport> {
    let lookup = |name: &str| context.env_variable(name);
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
    // Sorted once at the end: chains and egress are read after all functions, so problems are found
    // out of order.
    let report = StackReport::sorted(problems.problems);
    match stack {
        Some(stack) if !report.has_errors() => Ok(ParsedStack {
            stack,
            warnings: report,
        }),
        _ => Err(report),
    }
}
