//! What is wrong or doubtful in a file, each with its place, its line and what to do.

use std::fmt;

use crate::source::{SourceSpan, SourceText};

/// Whether a problem stops the deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemSeverity {
    /// Nothing is deployed.
    Error,
    /// Told, and gone on.
    Warning,
}

/// One problem at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackProblem {
    /// Whether it stops the deployment.
    pub severity: ProblemSeverity,
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
pub(crate) const MAX_EXCERPT_CHARS: usize = 100;

impl fmt::Display for StackProblem {
    /// `FILE:LINE:COLUMN: error: TEXT`, the line with a caret, and the help.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            ProblemSeverity::Error => "error",
            ProblemSeverity::Warning => "warning",
        };
        writeln!(
            f,
            "{}:{}:{}: {severity}: {}",
            self.file, self.line, self.column, self.text
        )?;
        let printable = |char: char| if char.is_control() { ' ' } else { char };
        let excerpt: String = self.excerpt.chars().map(printable).collect();
        writeln!(f, "{:>5} | {}", self.line, excerpt.trim_end())?;
        let indent = self.column - 1 - self.skipped;
        write!(
            f,
            "      | {:indent$}{}",
            "",
            "^".repeat(self.length.min(MAX_EXCERPT_CHARS / 2))
        )?;
        match &self.help {
            Some(help) => write!(f, "\n      = help: {help}"),
            None => Ok(()),
        }
    }
}

/// All problems of a stack file and of the files it names, errors first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StackReport {
    /// In the order of the text, errors before warnings.
    pub problems: Vec<StackProblem>,
}

/// A file may be wrong in more places than anybody reads.
const MAX_SHOWN_PROBLEMS: usize = 50;

impl StackReport {
    /// Whether nothing may be deployed.
    pub fn has_errors(&self) -> bool {
        self.problems
            .iter()
            .any(|problem| problem.severity == ProblemSeverity::Error)
    }

    pub(crate) fn sorted(mut problems: Vec<StackProblem>) -> Self {
        problems.sort_by_key(|problem| {
            (
                problem.severity == ProblemSeverity::Warning,
                problem.line,
                problem.column,
            )
        });
        problems.dedup();
        Self { problems }
    }
}

impl fmt::Display for StackReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in self.problems.iter().take(MAX_SHOWN_PROBLEMS) {
            writeln!(f, "{problem}")?;
        }
        match self.problems.len().saturating_sub(MAX_SHOWN_PROBLEMS) {
            0 => Ok(()),
            more => writeln!(f, "and {more} more"),
        }
    }
}

/// Collects the problems of one file while it is read.
pub(crate) struct ProblemList<'a> {
    pub(crate) source: &'a SourceText,
    pub(crate) problems: Vec<StackProblem>,
    /// Stands in for what is not kept any more.
    overflow: StackProblem,
}

/// More than this is not collected: a hostile file has a problem on every character.
const MAX_KEPT_PROBLEMS: usize = 200;

impl<'a> ProblemList<'a> {
    pub(crate) fn new(source: &'a SourceText) -> Self {
        let overflow = source.problem_at(
            ProblemSeverity::Warning,
            SourceSpan::default(),
            String::new(),
        );
        Self {
            source,
            problems: Vec::new(),
            overflow,
        }
    }

    pub(crate) fn add_error(
        &mut self,
        place: SourceSpan,
        text: impl Into<String>,
    ) -> &mut StackProblem {
        self.add_problem(ProblemSeverity::Error, place, text.into())
    }

    pub(crate) fn add_warning(
        &mut self,
        place: SourceSpan,
        text: impl Into<String>,
    ) -> &mut StackProblem {
        self.add_problem(ProblemSeverity::Warning, place, text.into())
    }

    pub(crate) fn add_problem(
        &mut self,
        severity: ProblemSeverity,
        place: SourceSpan,
        text: String,
    ) -> &mut StackProblem {
        if self.problems.len() >= MAX_KEPT_PROBLEMS {
            let ends_with_error = self
                .problems
                .last()
                .is_some_and(|last| last.severity == ProblemSeverity::Error);
            if severity == ProblemSeverity::Warning || ends_with_error {
                return &mut self.overflow;
            }
            self.problems.pop();
        }
        self.problems
            .push(self.source.problem_at(severity, place, text));
        self.problems.last_mut().expect("one was pushed")
    }
}

impl StackProblem {
    pub(crate) fn set_help(&mut self, text: impl Into<String>) {
        self.help = Some(text.into());
    }
}

/// The candidate that a mistyped word most likely meant.
pub(crate) fn suggest_similar<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    let word: String = word.chars().take(64).collect();
    let scored = candidates
        .into_iter()
        .take(1_000)
        .map(|candidate| (strsim::jaro_winkler(&word, candidate), candidate));
    let best = scored
        .filter(|(score, _)| *score > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(format!("did you mean `{}`?", best.1))
}
