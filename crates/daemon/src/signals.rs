//! The operator's word to end: SIGTERM or SIGINT.
//!
//! The first signal asks for an orderly end, a later one for the end at once. One word often comes as several signals:
//! `timeout` tells its child and then the child's process group, a terminal tells every process of the foreground. So what
//! follows within [`SIGNAL_MERGE_INTERVAL`] counts as the same.

use std::io;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Signals that follow the first one so closely are the same word.
pub const SIGNAL_MERGE_INTERVAL: Duration = Duration::from_secs(1);

/// The exit code of an end at once: 128 and SIGINT's number, as shells have it.
const IMMEDIATE_EXIT_CODE: i32 = 130;

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalRequest {
    /// An orderly end.
    Drain,
    /// Nothing new.
    Ignore,
    /// The end at once.
    Exit,
}

/// What the signals so far came to. Pure: time is an argument.
#[derive(Debug, Clone, Copy, Default)]
pub struct SignalHistory {
    first: Option<Instant>,
}

impl SignalHistory {
    /// Hears a signal that came at `now`.
    pub fn record_signal(&mut self, now: Instant) -> SignalRequest {
        match self.first {
            None => {
                self.first = Some(now);
                SignalRequest::Drain
            }
            Some(first) if now.saturating_duration_since(first) < SIGNAL_MERGE_INTERVAL => {
                SignalRequest::Ignore
            }
            Some(_) => SignalRequest::Exit,
        }
    }
}

/// Listens from now on: what is returned is ready when the operator has asked for the end, also if that was before anybody
/// awaited it. When the operator insists, the process ends. To be called before anything is started that an end must
/// take down, since until then a signal kills.
///
/// # Errors
/// When the signals cannot be heard.
pub fn listen_for_signals() -> io::Result<impl Future<Output = ()>> {
    let (mut term, mut int) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let (mut words, mut tell) = (SignalHistory::default(), Some(tell));
        loop {
            next_signal(&mut term, &mut int).await;
            match words.record_signal(Instant::now()) {
                SignalRequest::Drain => drop(tell.take()), // which is heard
                SignalRequest::Ignore => {}
                SignalRequest::Exit => std::process::exit(IMMEDIATE_EXIT_CODE),
            }
        }
    });
    Ok(async move {
        let _: Result<(), _> = told.await;
    })
}

async fn next_signal(term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_in_quick_succession_count_once() {
        let (mut words, first) = (SignalHistory::default(), Instant::now());
        let at = |millis| first + Duration::from_millis(millis);
        assert_eq!(words.record_signal(first), SignalRequest::Drain);
        for millis in [0, 1, 500, 999] {
            assert_eq!(
                words.record_signal(at(millis)),
                SignalRequest::Ignore,
                "{millis} ms"
            );
        }
        assert_eq!(
            words.record_signal(at(1_000)),
            SignalRequest::Exit,
            "repeating does not put it off"
        );
    }
}
