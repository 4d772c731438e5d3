//! What is wrong or doubtful in a file, each with its place, its line and what to do.

use std::fmt;

use crate::text::{Place, Source};

/// Whether a problem stops the deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// Nothing is deployed.
    Error,
    /// Told, and gone on.
    Warning,
}

/// One problem at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Whether it stops the deployment.
    pub weight: Weight,
    /// The file, as it was named.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// How many characters of the line it concerns, at least 1.
    pub length: usize,
    /// The line, or of a long one the part around the place.
    pub excerpt: String,
    /// Characters of the line before the excerpt.
    pub skipped: usize,
    /// What is wrong.
    pub text: String,
    /// What to do.
    pub help: Option<String>,
}

/// Characters of a line shown around a problem.
pub(crate) const WINDOW: usize = 100;

impl fmt::Display for Problem {
    /// `FILE:LINE:COLUMN: error: TEXT`, the line with a caret, and the help.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weight = match self.weight {
            Weight::Error => "error",
            Weight::Warning => "warning",
        };
        writeln!(f, "{}:{}:{}: {weight}: {}", self.file, self.line, self.column, self.text)?;
        let printable = |char: char| if char.is_control() { ' ' } else { char };
        let shown: String = self.excerpt.chars().map(printable).collect();
        writeln!(f, "{:>5} | {}", self.line, shown.trim_end())?;
        let indent = self.column - 1 - self.skipped;
        write!(f, "      | {:indent$}{}", "", "^".repeat(self.length.min(WINDOW / 2)))?;
        match &self.help {
            Some(help) => write!(f, "\n      = help: {help}"),
            None => Ok(()),
        }
    }
}

/// All problems of a stack file and of the files it names, errors first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// In the order of the text, errors before warnings.
    pub problems: Vec<Problem>,
}

/// A file may be wrong in more places than anybody reads.
const MAX_SHOWN: usize = 50;

impl Report {
    /// Whether nothing may be deployed.
    pub fn is_fatal(&self) -> bool {
        self.problems.iter().any(|problem| problem.weight == Weight::Error)
    }

    pub(crate) fn sorted(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| (problem.weight == Weight::Warning, problem.line, problem.column));
        problems.dedup();
        Self { problems }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in self.problems.iter().take(MAX_SHOWN) {
            writeln!(f, "{problem}")?;
        }
        match self.problems.len().saturating_sub(MAX_SHOWN) {
            0 => Ok(()),
            more => writeln!(f, "and {more} more"),
        }
    }
}

/// Collects the problems of one file while it is read.
pub(crate) struct Problems<'a> {
    pub(crate) source: &'a Source,
    pub(crate) list: Vec<Problem>,
    /// Stands in for what is not kept any more.
    spare: Problem,
}

/// More than this is not collected: a hostile file has a problem on every character.
const MAX_KEPT: usize = 200;

impl<'a> Problems<'a> {
    pub(crate) fn new(source: &'a Source) -> Self {
        let spare = source.problem(Weight::Warning, Place::default(), String::new());
        Self { source, list: Vec::new(), spare }
    }

    pub(crate) fn error(&mut self, place: Place, text: impl Into<String>) -> &mut Problem {
        self.push(Weight::Error, place, text.into())
    }

    pub(crate) fn warn(&mut self, place: Place, text: impl Into<String>) -> &mut Problem {
        self.push(Weight::Warning, place, text.into())
    }

    pub(crate) fn push(&mut self, weight: Weight, place: Place, text: String) -> &mut Problem {
        if self.list.len() >= MAX_KEPT {
            let told = self.list.last().is_some_and(|last| last.weight == Weight::Error);
            if weight == Weight::Warning || told {
                return &mut self.spare;
            }
            self.list.pop();
        }
        self.list.push(self.source.problem(weight, place, text));
        self.list.last_mut().expect("one was pushed")
    }
}

impl Problem {
    pub(crate) fn help(&mut self, text: impl Into<String>) {
        self.help = Some(text.into());
    }
}

/// The candidate that a mistyped word most likely meant.
pub(crate) fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let word: String = word.chars().take(64).collect();
    let scored =
        candidates.into_iter().take(1_000).map(|candidate| (strsim::jaro_winkler(&word, candidate), candidate));
    let best = scored.filter(|(score, _)| *score > 0.8).max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(format!("did you mean `{}`?", best.1))
}
