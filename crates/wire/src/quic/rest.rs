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

use super::body::BodyError;
use super::code;
use super::silence::{self, Counts, Silence};

/// What a line and its calls share; its watch ends with the last of them.
#[derive(Debug, Default)]
pub(super) struct Load {
    open: AtomicU32,
    /// Whether the watch has to be told of a call.
    rests: AtomicBool,
    begun: Arc<Notify>,
    /// Nothing got through for so long: this is why the connection was ended.
    silent: OnceLock<Duration>,
    watch: OnceLock<AbortHandle>,
}

impl Load {
    /// Calls that are under way.
    pub(super) fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// How long nothing had got through when the connection was ended for that.
    pub(super) fn silent(&self) -> Option<Duration> {
        self.silent.get().copied()
    }

    /// Why a body ends: a connection that was ended for silence says no more than that this side did so.
    pub(super) fn explain(&self, error: BodyError) -> BodyError {
        self.silent().map_or(error, BodyError::Silent)
    }

    /// A call begins.
    pub(super) fn begin(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
        if self.rests.load(Ordering::Relaxed) {
            self.begun.notify_one();
        }
    }

    /// The watch wants to be told of the next call; how many there are already.
    fn rest(&self) -> u32 {
        self.rests.store(true, Ordering::Relaxed);
        self.open()
    }

    fn go_on(&self) -> u32 {
        self.rests.store(false, Ordering::Relaxed);
        self.open()
    }

    /// A call ends.
    pub(super) fn end(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.watch.get().inspect(|watch| watch.abort());
    }
}

/// Watches a connection with this load until nobody has that any more. Must run inside a `LocalSet`, on the thread that makes its calls.
pub(super) fn begin(connection: &Connection, load: &Arc<Load>, after: Duration) {
    let watching = watch(connection.clone(), Arc::downgrade(load), Arc::clone(&load.begun), after);
    let _ = load.watch.set(tokio::task::spawn_local(watching).abort_handle()); // it is the only one
}

async fn watch(connection: Connection, load: Weak<Load>, begun: Arc<Notify>, after: Duration) {
    let mut seen = None;
    while connection.close_reason().is_none() {
        let calls = load.upgrade().map_or(0, |load| load.rest());
        let begun = calls > 0 || tokio::time::timeout(after, begun.notified()).await.is_ok();
        let Some(open) = load.upgrade().map(|load| load.go_on()) else { return };
        if begun {
            hear(&connection, &load).await;
            continue;
        }
        let sent = connection.stats().frame_tx.stream;
        if open == 0 && seen.replace(sent) == Some(sent) {
            connection.close(code::DONE, b"");
        }
    }
}

/// Until no call is under way.
async fn hear(connection: &Connection, load: &Weak<Load>) {
    let mut silence = Silence::after(Counts::from(connection));
    while connection.close_reason().is_none() {
        tokio::time::sleep(silence::LOOK).await;
        let Some(load) = load.upgrade().filter(|load| load.open() > 0) else { return };
        if silence.look(Instant::now(), Counts::from(connection)) {
            let _ = load.silent.set(silence::LONGEST); // before the calls break
            connection.close(code::DONE, b"");
        }
    }
}
