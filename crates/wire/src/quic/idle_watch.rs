//! When a caller's connection ends by itself: because nobody calls on it, or because nobody hears it.
//!
//! A call may take longer than a silent connection lives, and a NAT may forget a silent caller: so callers send a sign of life while nothing
//! else goes ([`super::config::calling`]). That alone would keep every connection for ever. It is ended here, when there was no call for
//! as long as silence is permitted; and, while calls are under way, soon after nothing gets through any more ([`super::silence`]).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use quinn::Connection;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::close_code;
use super::stall_detector::{self, PacketCounts, StallDetector};
use super::stream_body::StreamBodyError;

/// What a line and its calls share; its watch ends with the last of them.
#[derive(Debug, Default)]
pub(super) struct InFlightCalls {
    open_count: AtomicU32,
    /// Whether the watch has to be told of a call.
    is_idle: AtomicBool,
    call_started: Arc<Notify>,
    /// Nothing got through for so long: this is why the connection was ended.
    stalled_after: OnceLock<Duration>,
    watch: OnceLock<AbortHandle>,
}

impl InFlightCalls {
    /// Calls that are under way.
    pub(super) fn open(&self) -> u32 {
        self.open_count.load(Ordering::Relaxed)
    }

    /// How long nothing had got through when the connection was ended for that.
    pub(super) fn stalled_after(&self) -> Option<Duration> {
        self.stalled_after.get().copied()
    }

    /// Why a body ends: a connection that was ended for silence says no more than that this side did so.
    pub(super) fn explain_error(&self, error: StreamBodyError) -> StreamBodyError {
        self.stalled_after().map_or(error, StreamBodyError::Stalled)
    }

    /// A call begins.
    pub(super) fn start_call(&self) {
        self.open_count.fetch_add(1, Ordering::Relaxed);
        if self.is_idle.load(Ordering::Relaxed) {
            self.call_started.notify_one();
        }
    }

    /// The watch wants to be told of the next call; how many there are already.
    fn enter_idle(&self) -> u32 {
        self.is_idle.store(true, Ordering::Relaxed);
        self.open()
    }

    fn leave_idle(&self) -> u32 {
        self.is_idle.store(false, Ordering::Relaxed);
        self.open()
    }

    /// A call ends.
    pub(super) fn end_call(&self) {
        self.open_count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for InFlightCalls {
    fn drop(&mut self) {
        self.watch.get().inspect(|watch| watch.abort());
    }
}

/// Watches a connection with this load until nobody has that any more. Must run inside a `LocalSet`, on the thread that makes its calls.
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
        .set(tokio::task::spawn_local(watching).abort_handle()); // it is the only one
}

async fn watch_idle(
    connection: Connection,
    in_flight: Weak<InFlightCalls>,
    call_started: Arc<Notify>,
    idle_timeout: Duration,
) {
    let mut seen = None;
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
        let sent = connection.stats().frame_tx.stream;
        if open_count == 0 && seen.replace(sent) == Some(sent) {
            connection.close(close_code::DONE, b"");
        }
    }
}

/// Until no call is under way.
async fn watch_calls(connection: &Connection, in_flight: &Weak<InFlightCalls>) {
    let mut detector = StallDetector::starting_at(PacketCounts::from(connection));
    while connection.close_reason().is_none() {
        tokio::time::sleep(stall_detector::CHECK_INTERVAL).await;
        let Some(in_flight) = in_flight.upgrade().filter(|in_flight| in_flight.open() > 0) else {
            return;
        };
        if detector.observe(Instant::now(), PacketCounts::from(connection)) {
            let _ = in_flight.stalled_after.set(stall_detector::STALL_TIMEOUT); // before the calls break
            connection.close(close_code::DONE, b"");
        }
    }
}
