//! Stack files: OpenFaaS's format as it is, plus `chains:` and `egress:`, into function specs.
//!
//! In comes a text and the [`Surroundings`] that it may look at (variables, files, folders); out comes either a [`Stack`] of
//! specs with warnings, or a [`Report`] in which no problem hides another, each with file, line, column and what to do.
//!
//! The text walks one way: [`text`] replaces `${VAR}` and remembers where everything was written, [`yaml`] makes nodes that
//! know their places, [`reader`] hands them to [`function`] and [`chain`], which read and check them. Edges and destinations
//! become annotations there (see `nearpath_types::policy`). Files are data from anybody: size, depth and expansion are bounded.
#![forbid(unsafe_code)]

mod chain;
mod function;
mod problem;
mod reader;
mod surroundings;
#[cfg(test)]
mod tests;
mod text;
mod yaml;

use std::io;
use std::path::Path;

use nearpath_types::FunctionSpec;

pub use problem::{Problem, Report, Weight};
pub use surroundings::{MAX_FILE, Surroundings, ThisMachine};

use problem::Problems;
use reader::Reader;
use text::{Place, Source};

/// What a stack file asks for.
#[derive(Debug, Clone, Default)]
pub struct Stack {
    /// `provider.gateway`.
    pub gateway: Option<String>,
    /// In the order of the file.
    pub functions: Vec<FunctionSpec>,
}

/// A stack file's text and where it stands.
#[derive(Debug, Clone, Copy)]
pub struct Document<'a> {
    /// What problems call it.
    pub name: &'a str,
    /// As it was written.
    pub text: &'a str,
    /// Where relative paths start.
    pub folder: &'a Path,
}

/// A stack that may be deployed, and what is doubtful in its file.
#[derive(Debug, Clone)]
pub struct Parsed {
    /// What is asked for.
    pub stack: Stack,
    /// Holds warnings only.
    pub warnings: Report,
}

/// Why there is no stack.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file itself cannot be read.
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    /// What is wrong in it.
    #[error("{0}")]
    Invalid(Report),
}

/// Reads the stack file at `path`; relative paths in it start at its folder.
///
/// # Errors
/// See [`ReadError`].
pub fn read(path: &Path, around: &dyn Surroundings) -> Result<Parsed, ReadError> {
    let text = around.file(path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let document = Document { name: &path.display().to_string(), text: &text, folder };
    parse(document, around).map_err(ReadError::Invalid)
}

/// Reads a text.
///
/// # Errors
/// When something is wrong in it; the report then holds at least one error, and the warnings too.
pub fn parse(document: Document<'_>, around: &dyn Surroundings) -> Result<Parsed, Report> {
    let lookup = |name: &str| around.var(name);
    let (source, flaws) = Source::new(document.name, document.text, &lookup);
    let mut problems = Problems::new(&source);
    for flaw in flaws {
        let weight = if flaw.fatal { Weight::Error } else { Weight::Warning };
        problems.push(weight, Place { start: flaw.start, end: flaw.end }, flaw.text);
    }
    let root = yaml::parse(&source, &mut problems);
    let stack = root.map(|root| Reader { folder: document.folder, around, problems: &mut problems }.stack(&root));
    if stack.is_none() && problems.list.is_empty() {
        problems.error(Place::default(), "the file is empty").help("begin with `functions:`");
    }
    let report = Report::sorted(problems.list);
    match stack {
        Some(stack) if !report.is_fatal() => Ok(Parsed { stack, warnings: report }),
        _ => Err(report),
    }
}
