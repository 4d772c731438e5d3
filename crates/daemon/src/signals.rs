//! The operator's word to end: SIGTERM or SIGINT.
//!
//! The first signal asks for an orderly end, a later one for the end at once. One word often comes as several signals:
//! `timeout` tells its child and then the child's process group, a terminal tells every process of the foreground. So what
//! follows within [`SAME_WORD`] counts as the same.

use std::io;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

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

/// Listens from now on: what is returned is ready when the operator has asked for the end, also if that was before anybody
/// awaited it. When the operator insists, the process ends. To be called before anything is started that an end must
/// take down, since until then a signal kills.
///
/// # Errors
/// When the signals cannot be heard.
pub fn listen() -> io::Result<impl Future<Output = ()>> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let (mut words, mut tell) = (Words::default(), Some(tell));
        loop {
            either(&mut term, &mut int).await;
            match words.hear(Instant::now()) {
                Word::End => drop(tell.take()), // which is heard
                Word::Again => {}
                Word::AtOnce => std::process::exit(AT_ONCE),
            }
        }
    });
    Ok(async move {
        let _: Result<(), _> = told.await;
    })
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
