//! Why an instance is gone, in words for the tenant: what happened, who caused it, what to do.

use std::fmt;
use std::time::Duration;

use nearpath_types::duration;

use super::notes::readable;
use crate::machine::Exit;

/// Begins what the watchdog itself writes among the tenant's lines.
const WATCHDOG_WORDS: &str = "nearpath-watchdog: ";
/// Ends the text of a failure that nobody tries again.
const NO_RETRY: &str = "; it is not tried again until the function is deployed anew";

/// The end of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The node told it to stop.
    Stopped,
    /// It never got ready.
    FailedStart(String),
    /// It cannot start, now or later: what is deployed has to change first.
    Impossible(String),
    /// It was ready and ended by itself.
    Died(String),
}

impl Ending {
    /// A start that failed for `text`; `lasting` when another try would end the same way.
    pub fn failed_start(text: String, lasting: bool) -> Self {
        match lasting {
            true => Self::Impossible(text + NO_RETRY),
            false => Self::FailedStart(text),
        }
    }
}

/// What is known of an instance that ended by itself.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// How the process ended; `None`: it was never started.
    pub exit: Option<Exit>,
    /// Its own `failed` note.
    pub reported: Option<String>,
    /// The last line that it wrote.
    pub last_line: Option<String>,
    /// The memory limit as the tenant wrote it.
    pub memory_limit: Option<String>,
}

impl Evidence {
    /// The text for an instance that ended before it was ready.
    pub fn before_ready(&self) -> String {
        self.tell("the instance ended before it was ready")
    }

    /// The text for an instance that ended after it had been ready.
    pub fn after_ready(&self) -> String {
        self.tell("the instance ended while it was serving")
    }

    /// The text for an instance that did not get ready within `limit`.
    pub fn too_slow(&self, limit: Duration) -> String {
        let what = format!("the instance was not ready within {} and was ended", duration::format(limit));
        let hint = "see whether its server listens where `upstream_url` says, or raise `start_timeout`";
        format!("{what}{}; {hint}", self.quote())
    }

    fn tell(&self, what: &str) -> String {
        match (&self.reported, self.exit) {
            (Some(text), _) => format!("{}{}", readable(text), self.quote()),
            (None, Some(exit)) => format!("{what} ({exit}){}{}", self.memory_hint(exit), self.quote()),
            (None, None) => what.to_owned(),
        }
    }

    /// SIGKILL that the node did not send is nearly always the kernel's, for want of memory.
    fn memory_hint(&self, exit: Exit) -> String {
        match (exit, &self.memory_limit) {
            (Exit::Signal(9), Some(limit)) => {
                format!(", most likely because it needed more than limits.memory ({limit}) allows")
            }
            (Exit::Signal(9), None) => ", most likely because the machine ran out of memory".to_owned(),
            _ => String::new(),
        }
    }

    fn quote(&self) -> String {
        match self.last_line.as_deref().map(readable) {
            Some(line) if !line.trim().is_empty() && !self.is_told(line.trim()) => {
                format!("; its last line was: {}", line.trim())
            }
            _ => String::new(),
        }
    }

    /// Whether its own note says already what the line says. The watchdog writes what it notes into the log, too, and
    /// notes the last lines that it passed on, without the time and the stream's name that it put before them.
    fn is_told(&self, line: &str) -> bool {
        let Some(reported) = &self.reported else { return false };
        let said = [" stdout: ", " stderr: "].iter().find_map(|stream| line.split_once(stream));
        let said = said.map_or(line, |(_, said)| said.trim());
        line.starts_with(WATCHDOG_WORDS) || reported.contains(said)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Unknown => f.write_str("nobody knows how"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_and_the_last_words_are_told() {
        let mut evidence = Evidence { exit: Some(Exit::Code(1)), ..Evidence::default() };
        assert_eq!(evidence.before_ready(), "the instance ended before it was ready (exit code 1)");
        evidence.last_line = Some("ModuleNotFoundError: flask\x1b[0m".into());
        evidence.reported = Some("handler: exit code 1".into());
        let text = "handler: exit code 1; its last line was: ModuleNotFoundError: flask[0m";
        assert_eq!(evidence.before_ready(), text);
    }

    #[test]
    fn what_the_note_says_is_not_told_twice() {
        let note = "the tenant's process ended with exit code 1 before it accepted connections; last output: no flask";
        let own = format!("nearpath-watchdog: {note}");
        for line in [&own, "2026/11/21 07:51:35 stderr: no flask", "no flask", "  "] {
            let (reported, last_line) = (Some(note.to_owned()), Some(line.to_owned()));
            assert_eq!(Evidence { reported, last_line, ..Evidence::default() }.before_ready(), note, "{line}");
        }
    }

    #[test]
    fn the_watchdogs_last_words_are_told_when_it_left_no_note() {
        let last_line = Some("nearpath-watchdog: the tenant's process ended with exit code 3".to_owned());
        let text = Evidence { exit: Some(Exit::Code(3)), last_line, ..Evidence::default() }.after_ready();
        assert!(text.contains("; its last line was: nearpath-watchdog: the tenant's process"), "{text}");
    }

    #[test]
    fn a_lasting_cause_says_when_it_is_tried_again() {
        let Ending::Impossible(text) = Ending::failed_start("no".into(), true) else { panic!("it lasts") };
        assert_eq!(text, "no; it is not tried again until the function is deployed anew");
        assert_eq!(Ending::failed_start("no".into(), false), Ending::FailedStart("no".into()));
    }

    #[test]
    fn a_kill_from_outside_names_the_memory_limit() {
        let (exit, memory_limit) = (Some(Exit::Signal(9)), Some("128Mi".to_owned()));
        let text = Evidence { exit, memory_limit, ..Evidence::default() }.after_ready();
        assert!(text.contains("limits.memory (128Mi)"), "{text}");
    }

    #[test]
    fn a_slow_start_names_the_settings() {
        let text = Evidence::default().too_slow(Duration::from_secs(40));
        assert!(text.contains("40s") && text.contains("start_timeout") && text.contains("upstream_url"), "{text}");
    }
}
