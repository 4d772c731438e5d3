//! Automatic end of a caller's connection: without calls, or when nothing is received any more.
//!
//! A call may take longer than the idle timeout, and a NAT may forget an idle mapping. So callers
//! send keep-alives ([`super::config::caller_transport`]), which alone would keep every connection
//! open. An idle watch closes it after the idle timeout without a call. While calls are in flight,
//! it closes the connection soon after nothing gets through ([`super::stall_detector`]).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use quinn::Connection;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::close_code;
use super::stall_detector::{self, PacketCounts, StallDetector};
use super::stream_body::StreamBodyError;

/// State that a connection and its calls share. The watch task ends with the last of them.
#[derive(Debug, Default)]
pub(super) struct InFlightCalls {
    open_count: AtomicU32,
    /// Set while the watch waits for a call.
    is_idle: AtomicBool,
    call_started: Arc<Notify>,
    /// Time without any received packet, if the connection was closed for it.
    stalled_after: OnceLock<Duration>,
    watch: OnceLock<AbortHandle>,
}

impl InFlightCalls {
    /// Number of calls in flight.
    pub(super) fn open(&self) -> u32 {
        self.open_count.load(Ordering::Relaxed)
    }

    /// Time without any received packet, if the connection was closed for it.
    pub(super) fn stalled_after(&self) -> Option<Duration> {
        self.stalled_after.get().copied()
    }

    /// Replaces the error of a connection that was closed for a stall: quinn only reports a local
    /// close.
    pub(super) fn explain_error(&self, error: StreamBodyError) -> StreamBodyError {
        self.stalled_after().map_or(error, StreamBodyError::Stalled)
    }

    /// Counts a started call and wakes the watch.
    pub(super) fn start_call(&self) {
        // Before the flag is read: the watch sets the flag and then reads the count, on the same
        // thread.
        self.open_count.fetch_add(1, Ordering::Relaxed);
        if self.is_idle.load(Ordering::Relaxed) {
            self.call_started.notify_one();
        }
    }

    /// Asks to be woken by the next call. Returns the number of calls in flight.
    fn enter_idle(&self) -> u32 {
        self.is_idle.store(true, Ordering::Relaxed);
        self.open()
    }

    fn leave_idle(&self) -> u32 {
        self.is_idle.store(false, Ordering::Relaxed);
        self.open()
    }

    /// Counts an ended call.
    pub(super) fn end_call(&self) {
        self.open_count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for InFlightCalls {
    fn drop(&mut self) {
        // The task holds the connection, which would otherwise live until the next timeout.
        self.watch.get().inspect(|watch| watch.abort());
    }
}

/// Watches a connection until its last user is dropped. Must run inside a `LocalSet`, on the thread
/// that makes its calls.
pub(super) fn spawn_idle_watch(
    connection: &Connection,
    in_flight: &Arc<InFlightCalls>,
    idle_timeout: Duration,
) {
    let watching = watch_idle(
        connection.clone(),
        Arc::downgrade(in_flight),
        Arc::clone(&in_flight.call_started),
        idle_timeout,
    );
    let _ = in_flight
        .watch
        .set(tokio::task::spawn_local(watching).abort_handle()); // set once: the connection is new
}

async fn watch_idle(
    connection: Connection,
    in_flight: Weak<InFlightCalls>,
    call_started: Arc<Notify>,
    idle_timeout: Duration,
) {
    let mut last_sent = None;
    while connection.close_reason().is_none() {
        let calls = in_flight
            .upgrade()
            .map_or(0, |in_flight| in_flight.enter_idle());
        let was_called = calls > 0
            || tokio::time::timeout(idle_timeout, call_started.notified())
                .await
                .is_ok();
        let Some(open_count) = in_flight.upgrade().map(|in_flight| in_flight.leave_idle()) else {
            return;
        };
        if was_called {
            watch_calls(&connection, &in_flight).await;
            continue;
        }
        // A call may have started and ended within the timeout: then stream frames were sent.
        let sent = connection.stats().frame_tx.stream;
        if open_count == 0 && last_sent.replace(sent) == Some(sent) {
            connection.close(close_code::DONE, b"");
        }
    }
}

/// Watches for a stall until no call is in flight.
async fn watch_calls(connection: &Connection, in_flight: &Weak<InFlightCalls>) {
    let mut detector = StallDetector::starting_at(PacketCounts::from(connection));
    while connection.close_reason().is_none() {
        tokio::time::sleep(stall_detector::CHECK_INTERVAL).await;
        let Some(in_flight) = in_flight.upgrade().filter(|in_flight| in_flight.open() > 0) else {
            return;
        };
        if detector.observe(Instant::now(), PacketCounts::from(connection)) {
            // before the close: failing calls read it
            let _ = in_flight.stalled_after.set(stall_detector::STALL_TIMEOUT);
            connection.close(close_code::DONE, b"");
        }
    }
}
