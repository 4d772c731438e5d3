//! Shutdown by SIGTERM or SIGINT.
//!
//! The first signal requests a graceful shutdown, a later one an immediate exit. A single request
//! often arrives as several signals: `timeout` signals its child and then the child's process
//! group, a terminal every process of the foreground. So signals within [`SIGNAL_MERGE_INTERVAL`]
//! of the first count as one.

use std::io;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Interval after the first signal in which further ones are ignored.
pub const SIGNAL_MERGE_INTERVAL: Duration = Duration::from_secs(1);

/// Exit code of an immediate exit: 128 plus the number of SIGINT, as in shells.
const IMMEDIATE_EXIT_CODE: i32 = 130;

/// Request of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalRequest {
    /// Graceful shutdown.
    Drain,
    /// No new request.
    Ignore,
    /// Immediate exit.
    Exit,
}

/// Signals received so far. Pure: time is an argument.
#[derive(Debug, Clone, Copy, Default)]
pub struct SignalHistory {
    first: Option<Instant>,
}

impl SignalHistory {
    /// Records a signal received at `now`.
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

/// Installs the handlers and returns a future that is ready at the first request, even one before
/// it is polled. A second request exits the process. Call it before starting anything that needs a
/// clean shutdown: until then a signal kills.
///
/// # Errors
/// When the handlers cannot be installed.
pub fn listen_for_signals() -> io::Result<impl Future<Output = ()>> {
    let (mut term, mut int) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let (sender, receiver) = oneshot::channel();
    tokio::spawn(async move {
        let (mut history, mut sender) = (SignalHistory::default(), Some(sender));
        loop {
            next_signal(&mut term, &mut int).await;
            match history.record_signal(Instant::now()) {
                // Dropping the sender completes the future.
                SignalRequest::Drain => drop(sender.take()),
                SignalRequest::Ignore => {}
                SignalRequest::Exit => std::process::exit(IMMEDIATE_EXIT_CODE),
            }
        }
    });
    Ok(async move {
        let _: Result<(), _> = receiver.await;
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
        let (mut history, first) = (SignalHistory::default(), Instant::now());
        let at = |millis| first + Duration::from_millis(millis);
        assert_eq!(history.record_signal(first), SignalRequest::Drain);
        for millis in [0, 1, 500, 999] {
            assert_eq!(
                history.record_signal(at(millis)),
                SignalRequest::Ignore,
                "{millis} ms"
            );
        }
        assert_eq!(
            history.record_signal(at(1_000)),
            SignalRequest::Exit,
            "repetition does not postpone it"
        );
    }
}
