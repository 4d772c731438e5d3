//! Faults of a folder, as one line for logs and status.

use std::fmt;

use nearpath_stack::{ProblemSeverity, StackProblem, StackReadError, StackReport};

/// Faults printed in full; the others are counted.
const MAX_PRINTED_FAULTS: usize = 3;

/// Faults of a folder; at least one. Each names its file, and the correction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FolderFaults(Vec<String>);

impl FolderFaults {
    pub(crate) fn push(&mut self, text: String) {
        self.0.push(text);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the errors of a file.
    pub(crate) fn add_read_error(&mut self, path: &std::path::Path, error: &StackReadError) {
        match error {
            StackReadError::Unreadable(error) => {
                self.push(format!("{}: cannot be read: {error}", path.display()));
            }
            StackReadError::Invalid(report) => {
                self.0.extend(lines_of(report, ProblemSeverity::Error));
            }
        }
    }
}

impl fmt::Display for FolderFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let printed = self.0.len().min(MAX_PRINTED_FAULTS);
        f.write_str(&self.0[..printed].join("; "))?;
        match self.0.len() - printed {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// Returns the problems of one severity, each in a line.
pub(crate) fn lines_of(
    report: &StackReport,
    severity: ProblemSeverity,
) -> impl Iterator<Item = String> {
    let problems = report.problems.iter();
    problems
        .filter(move |problem| problem.severity == severity)
        .map(problem_line)
}

/// Returns `FILE:LINE:COLUMN: TEXT (HELP)`.
fn problem_line(problem: &StackProblem) -> String {
    let StackProblem {
        file,
        line,
        column,
        text,
        help,
        ..
    } = problem;
    let help = help.as_ref().map(|help| format!(" ({help})"));
    format!("{file}:{line}:{column}: {text}{}", help.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_faults_are_one_short_line() {
        let mut faults = FolderFaults::default();
        for number in 1..=5 {
            faults.push(format!("fault {number}"));
        }
        assert_eq!(faults.to_string(), "fault 1; fault 2; fault 3; and 2 more");
    }
}
