//! The operator's word to end: SIGTERM or SIGINT.
//!
//! The first signal asks for an orderly end, a later one for the end at once. One word often comes as several signals:
//! `timeout` tells its child and then the child's process group, a terminal tells every process of the foreground. So what
//! follows within [`SAME_WORD`] counts as the same.

use std::io;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that follow the first one so closely are the same word.
pub const SAME_WORD: Duration = Duration::from_secs(1);

/// The exit code of an end at once: 128 and SIGINT's number, as shells have it.
const AT_ONCE: i32 = 130;

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// An orderly end.
    End,
    /// Nothing new.
    Again,
    /// The end at once.
    AtOnce,
}

/// What the signals so far came to. Pure: time is an argument.
#[derive(Debug, Clone, Copy, Default)]
pub struct Words {
    first: Option<Instant>,
}

impl Words {
    /// Hears a signal that came at `now`.
    pub fn hear(&mut self, now: Instant) -> Word {
        match self.first {
            None => {
                self.first = Some(now);
                Word::End
            }
            Some(first) if now.saturating_duration_since(first) < SAME_WORD => Word::Again,
            Some(_) => Word::AtOnce,
        }
    }
}

/// Returns when the operator asks for the end. From then on a task ends the process when the operator insists.
///
/// # Errors
/// When the signals cannot be heard.
pub async fn until_told() -> io::Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut words = Words::default();
    either(&mut term, &mut int).await;
    words.hear(Instant::now());
    tokio::spawn(async move {
        loop {
            either(&mut term, &mut int).await;
            if words.hear(Instant::now()) == Word::AtOnce {
                std::process::exit(AT_ONCE);
            }
        }
    });
    Ok(())
}

async fn either(term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_in_quick_succession_are_one_word() {
        let (mut words, first) = (Words::default(), Instant::now());
        let at = |millis| first + Duration::from_millis(millis);
        assert_eq!(words.hear(first), Word::End);
        for millis in [0, 1, 500, 999] {
            assert_eq!(words.hear(at(millis)), Word::Again, "{millis} ms");
        }
        assert_eq!(words.hear(at(1_000)), Word::AtOnce, "repeating does not put it off");
    }
}
