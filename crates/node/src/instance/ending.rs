//! Reasons for the end of an instance, as texts for the tenant: what happened, its cause and a
//! remedy.

use std::fmt;
use std::time::Duration;

use nearpath_types::duration;

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
    FailedStart(String),
    /// Cannot start, now or later: the deployment has to change first.
    Impossible(String),
    /// Ended by itself after it was ready.
    Died(String),
}

impl InstanceEnding {
    /// Returns a failed start; `lasting` if every retry would fail the same way.
    pub fn failed_start(text: String, lasting: bool) -> Self {
        match lasting {
            true => Self::Impossible(text + NO_RETRY),
            false => Self::FailedStart(text),
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
            (Some(text), _) => format!("{}{}", readable(text), self.quote_last_line()),
            (None, Some(exit)) => format!(
                "{what} ({exit}){}{}",
                self.memory_hint(exit),
                self.quote_last_line()
            ),
            (None, None) => what.to_owned(),
        }
    }

    /// Explains SIGKILL: if the node did not send it, the kernel nearly always did for lack of
    /// memory.
    fn memory_hint(&self, exit: ProcessExit) -> String {
        match (exit, &self.memory_limit) {
            // The OOM killer of a cgroup sends SIGKILL (cgroup-v2.rst, memory.max).
            (ProcessExit::Signal(9), Some(limit)) => {
                format!(", most likely because it needed more than limits.memory ({limit}) allows")
            }
            (ProcessExit::Signal(9), None) => {
                ", most likely because the machine ran out of memory".to_owned()
            }
            _ => String::new(),
        }
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
        let InstanceEnding::Impossible(text) = InstanceEnding::failed_start("no".into(), true)
        else {
            panic!("it lasts")
        };
        assert_eq!(
            text,
            "no; it is not tried again until the function is deployed anew"
        );
        assert_eq!(
            InstanceEnding::failed_start("no".into(), false),
            InstanceEnding::FailedStart("no".into())
        );
    }

    #[test]
    fn a_kill_from_outside_names_the_memory_limit() {
        let (exit, memory_limit) = (Some(ProcessExit::Signal(9)), Some("128Mi".to_owned()));
        let text = EndEvidence {
            exit,
            memory_limit,
            ..EndEvidence::default()
        }
        .text_after_ready();
        assert!(text.contains("limits.memory (128Mi)"), "{text}");
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
