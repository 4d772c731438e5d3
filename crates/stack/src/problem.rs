//! Errors and warnings in a file, each with its position, its line and a correction.

use std::fmt;

use nearpath_types::similar::find_similar;

use crate::source::{SourceSpan, SourceText};

/// Severity of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemSeverity {
    /// The stack is not deployed.
    Error,
    /// Reported only.
    Warning,
}

/// A problem at a position in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackProblem {
    /// Severity of the problem.
    pub severity: ProblemSeverity,
    /// File, as named by the caller.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Number of affected characters in the line, at least 1.
    pub length: usize,
    /// The line; of a long one, the part around the position.
    pub excerpt: String,
    /// Characters of the line before the excerpt.
    pub skipped: usize,
    /// Description of the problem.
    pub text: String,
    /// Correction.
    pub help: Option<String>,
}

/// Characters of a line shown in a report.
const MAX_EXCERPT_CHARS: usize = 100;

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
        // Control characters could move the terminal's cursor or change its colours: the file may
        // be hostile.
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

/// All problems of a stack file and of the files that it names, errors first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StackReport {
    /// Errors before warnings, each in the order of the text.
    pub problems: Vec<StackProblem>,
}

/// Problems printed in a report; the rest is counted.
const MAX_PRINTED_PROBLEMS: usize = 50;

impl StackReport {
    /// True when the stack must not be deployed.
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
        // Several edges can report the same unknown name at the same position.
        problems.dedup();
        Self { problems }
    }
}

impl fmt::Display for StackReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in self.problems.iter().take(MAX_PRINTED_PROBLEMS) {
            writeln!(f, "{problem}")?;
        }
        match self.problems.len().saturating_sub(MAX_PRINTED_PROBLEMS) {
            0 => Ok(()),
            more => writeln!(f, "and {more} more"),
        }
    }
}

/// Collects the problems of one file.
pub(crate) struct ProblemList<'a> {
    pub(crate) source: &'a SourceText,
    pub(crate) problems: Vec<StackProblem>,
    /// Returned in place of problems that are not kept.
    overflow: StackProblem,
}

/// Problems kept per file: a hostile file has one on every character.
const MAX_KEPT_PROBLEMS: usize = 200;

impl<'a> ProblemList<'a> {
    pub(crate) fn new(source: &'a SourceText) -> Self {
        // A real problem as the target of later writes: callers add help without checking the
        // limit.
        let overflow = StackProblem::new(
            source,
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
        span: SourceSpan,
        text: impl Into<String>,
    ) -> &mut StackProblem {
        self.add_problem(ProblemSeverity::Error, span, text.into())
    }

    pub(crate) fn add_warning(
        &mut self,
        span: SourceSpan,
        text: impl Into<String>,
    ) -> &mut StackProblem {
        self.add_problem(ProblemSeverity::Warning, span, text.into())
    }

    pub(crate) fn add_problem(
        &mut self,
        severity: ProblemSeverity,
        span: SourceSpan,
        text: String,
    ) -> &mut StackProblem {
        if self.problems.len() >= MAX_KEPT_PROBLEMS {
            let ends_with_error = self
                .problems
                .last()
                .is_some_and(|last| last.severity == ProblemSeverity::Error);
            // An error still replaces a warning: a full list must not turn an invalid file into a
            // valid one.
            if severity == ProblemSeverity::Warning || ends_with_error {
                return &mut self.overflow;
            }
            self.problems.pop();
        }
        self.problems
            .push(StackProblem::new(self.source, severity, span, text));
        self.problems.last_mut().expect("one was pushed")
    }
}

impl StackProblem {
    /// Makes a problem at a position, with its line.
    fn new(source: &SourceText, severity: ProblemSeverity, span: SourceSpan, text: String) -> Self {
        let line = source.line_number(span);
        let (first_char, full_line) = source.original_line(line);
        let width = full_line.chars().count();
        // A span may start at a line break or end in another line: the caret stays in this line.
        let column = (span.start - first_char).min(width);
        let length = span
            .end
            .saturating_sub(span.start)
            .clamp(1, (width - column).max(1));
        // Centres the excerpt: a problem at the end of a long line must be visible.
        let skipped = column.saturating_sub(MAX_EXCERPT_CHARS / 2);
        let excerpt = full_line
            .chars()
            .skip(skipped)
            .take(MAX_EXCERPT_CHARS)
            .collect();
        Self {
            severity,
            file: source.name().to_owned(),
            line,
            column: column + 1,
            length,
            excerpt,
            skipped,
            text,
            help: None,
        }
    }

    pub(crate) fn set_help(&mut self, text: impl Into<String>) {
        self.help = Some(text.into());
    }
}

/// Suggests the candidate that a mistyped word most likely meant.
pub(crate) fn suggest_similar<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    let nearest = find_similar(word, candidates)?;
    Some(format!("did you mean `{nearest}`?"))
}
