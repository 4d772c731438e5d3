//! Reasons for the end of an instance, as texts for the tenant: what happened, its cause and a
//! remedy.

use std::fmt;
use std::time::Duration;

use nearpath_types::{StartFailureCause, duration};

use super::notes::readable;
use crate::machine::ProcessExit;

/// Prefix of the watchdog's own lines among the tenant's.
const WATCHDOG_PREFIX: &str = "nearpath-watchdog: ";
/// Suffix of failures that are not retried.
const NO_RETRY: &str = "; it is not tried again until the function is deployed anew";

/// End of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstanceEnding {
    /// Stopped by the node.
    Stopped,
    /// Failed before it was ready.
    FailedStart(EndReport),
    /// Cannot start, now or later: the deployment has to change first.
    Impossible(EndReport),
    /// Ended by itself after it was ready.
    Died(EndReport),
}

/// Explanation of an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndReport {
    /// Cause for callers.
    pub cause: StartFailureCause,
    /// Text for the administrator; may quote the tenant's output.
    pub text: String,
}

impl EndReport {
    /// Creates a report.
    pub fn new(cause: StartFailureCause, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { cause, text }
    }
}

impl InstanceEnding {
    /// Returns a start without a usable folder; `lasting` if every retry would fail the same way.
    pub fn without_folder(text: String, lasting: bool) -> Self {
        let cause = StartFailureCause::NotDeployable;
        match lasting {
            true => Self::Impossible(EndReport::new(cause, text + NO_RETRY)),
            false => Self::FailedStart(EndReport::new(cause, text)),
        }
    }

    /// Returns a start that the node could not make.
    pub fn refused_by_node(text: String) -> Self {
        Self::FailedStart(EndReport::new(StartFailureCause::NodeRefused, text))
    }

    /// Returns the explanation; `None` for an instance that the node stopped.
    pub fn report(&self) -> Option<&EndReport> {
        match self {
            Self::Stopped => None,
            Self::FailedStart(report) | Self::Impossible(report) | Self::Died(report) => {
                Some(report)
            }
        }
    }
}

/// Facts about an instance that ended by itself.
#[derive(Debug, Clone, Default)]
pub struct EndEvidence {
    /// Result of the process; `None` if it was never started.
    pub exit: Option<ProcessExit>,
    /// Its own `failed` note.
    pub reported: Option<String>,
    /// Last line of its output.
    pub last_line: Option<String>,
    /// Memory limit as the tenant wrote it.
    pub memory_limit: Option<String>,
    /// Processes that the kernel killed for lack of memory; `None`: unknown.
    pub oom_kills: Option<u64>,
}

impl EndEvidence {
    /// Returns the text for an instance that ended before it was ready.
    pub fn text_before_ready(&self) -> String {
        self.describe_end("the instance ended before it was ready")
    }

    /// Returns the text for an instance that ended after it was ready.
    pub fn text_after_ready(&self) -> String {
        self.describe_end("the instance ended while it was serving")
    }

    /// Returns the text for an instance that was not ready within `limit`.
    pub fn text_too_slow(&self, limit: Duration) -> String {
        let what = format!(
            "the instance was not ready within {} and was ended",
            duration::format_duration(limit)
        );
        let hint =
            "see whether its server listens where `upstream_url` says, or raise `start_timeout`";
        format!("{what}{}; {hint}", self.quote_last_line())
    }

    fn describe_end(&self, what: &str) -> String {
        match (&self.reported, self.exit) {
            // The instance's own explanation is better than its exit code.
            (Some(text), exit) => format!(
                "{}{}{}",
                readable(text),
                exit.map(|exit| self.kill_hint(exit)).unwrap_or_default(),
                self.quote_last_line()
            ),
            (None, Some(exit)) => format!(
                "{what} ({exit}){}{}",
                self.kill_hint(exit),
                self.quote_last_line()
            ),
            (None, None) => what.to_owned(),
        }
    }

    /// Explains a kill: the kernel's for lack of memory, or another process's.
    fn kill_hint(&self, exit: ProcessExit) -> String {
        match (self.oom_kills, exit) {
            (Some(1..), _) => format!(", because {}", self.memory_cause()),
            // The node's own kills are reported otherwise.
            (Some(0), ProcessExit::Signal(9)) => {
                ", killed by another process and not for its memory".to_owned()
            }
            (None, ProcessExit::Signal(9)) => {
                format!(", perhaps because {}", self.memory_cause())
            }
            _ => String::new(),
        }
    }

    fn memory_cause(&self) -> String {
        memory_cause(self.memory_limit.as_deref())
    }

    /// Returns the cause for callers, unless memory was not the cause.
    pub fn memory_failure(&self) -> Option<StartFailureCause> {
        (self.oom_kills > Some(0)).then_some(StartFailureCause::OutOfMemory)
    }

    fn quote_last_line(&self) -> String {
        match self.last_line.as_deref().map(readable) {
            Some(line) if !line.trim().is_empty() && !self.is_reported(line.trim()) => {
                format!("; its last line was: {}", line.trim())
            }
            _ => String::new(),
        }
    }

    /// Returns whether the instance's own note contains the line.
    ///
    /// The watchdog logs its note too. The note quotes the last lines of output, without the time
    /// and stream name that precede them in the log.
    fn is_reported(&self, line: &str) -> bool {
        let Some(reported) = &self.reported else {
            return false;
        };
        let content = [" stdout: ", " stderr: "]
            .iter()
            .find_map(|stream| line.split_once(stream));
        let content = content.map_or(line, |(_, content)| content.trim());
        line.starts_with(WATCHDOG_PREFIX) || reported.contains(content)
    }
}

impl fmt::Display for ProcessExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Unknown => f.write_str("unknown exit status"),
        }
    }
}

/// Explains that memory ran out; `limit` is the instance's, as the tenant wrote it.
pub(super) fn memory_cause(limit: Option<&str>) -> String {
    match limit {
        Some(limit) => format!("it needed more memory than limits.memory ({limit}) allows"),
        None => "the machine ran out of memory".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_and_the_last_line_are_quoted() {
        let mut evidence = EndEvidence {
            exit: Some(ProcessExit::Code(1)),
            ..EndEvidence::default()
        };
        assert_eq!(
            evidence.text_before_ready(),
            "the instance ended before it was ready (exit code 1)"
        );
        evidence.last_line = Some("ModuleNotFoundError: flask\x1b[0m".into());
        evidence.reported = Some("handler: exit code 1".into());
        let text = "handler: exit code 1; its last line was: ModuleNotFoundError: flask[0m";
        assert_eq!(evidence.text_before_ready(), text);
    }

    #[test]
    fn a_reported_line_is_not_quoted_again() {
        let note = "the tenant's process ended with exit code 1 before it accepted connections; last output: no flask";
        let own = format!("nearpath-watchdog: {note}");
        for line in [
            &own,
            "2026/11/21 07:51:35 stderr: no flask",
            "no flask",
            "  ",
        ] {
            let (reported, last_line) = (Some(note.to_owned()), Some(line.to_owned()));
            assert_eq!(
                EndEvidence {
                    reported,
                    last_line,
                    ..EndEvidence::default()
                }
                .text_before_ready(),
                note,
                "{line}"
            );
        }
    }

    #[test]
    fn without_a_note_the_watchdogs_last_line_is_quoted() {
        let last_line =
            Some("nearpath-watchdog: the tenant's process ended with exit code 3".to_owned());
        let text = EndEvidence {
            exit: Some(ProcessExit::Code(3)),
            last_line,
            ..EndEvidence::default()
        }
        .text_after_ready();
        assert!(
            text.contains("; its last line was: nearpath-watchdog: the tenant's process"),
            "{text}"
        );
    }

    #[test]
    fn a_lasting_failure_says_when_it_is_retried() {
        let lasting = InstanceEnding::without_folder("no".into(), true);
        assert_eq!(
            lasting.report().unwrap().text,
            "no; it is not tried again until the function is deployed anew"
        );
        assert!(matches!(lasting, InstanceEnding::Impossible(_)));
        assert!(matches!(
            InstanceEnding::without_folder("no".into(), false),
            InstanceEnding::FailedStart(EndReport { text, .. }) if text == "no"
        ));
    }

    #[test]
    fn a_kill_names_the_memory_limit_only_if_the_kernel_counted_it() {
        let text = |exit, oom_kills| {
            let (exit, memory_limit) = (Some(exit), Some("128Mi".to_owned()));
            EndEvidence {
                exit,
                memory_limit,
                oom_kills,
                ..EndEvidence::default()
            }
            .text_after_ready()
        };
        let killed = ProcessExit::Signal(9);
        assert!(
            text(killed, Some(1))
                .contains("because it needed more memory than limits.memory (128Mi)")
        );
        // The watchdog survived its killed child and ended with a code of its own.
        assert!(text(ProcessExit::Code(137), Some(1)).contains("limits.memory (128Mi)"));
        assert!(text(killed, Some(0)).contains("by another process and not for its memory"));
        assert!(text(killed, None).contains("perhaps because"));
        assert!(!text(ProcessExit::Code(1), Some(0)).contains("memory"));
    }

    #[test]
    fn a_slow_start_names_the_settings() {
        let text = EndEvidence::default().text_too_slow(Duration::from_secs(40));
        assert!(
            text.contains("40s") && text.contains("start_timeout") && text.contains("upstream_url"),
            "{text}"
        );
    }
}
