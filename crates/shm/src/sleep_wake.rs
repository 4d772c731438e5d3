//! Sleep and wakeup of an endpoint without lost wakeups. Model-checked with `make loom`.
//!
//! The sleeper announces its sleep, then checks for work again; the waker pushes, then checks for a
//! sleeper. A full fence between the two steps on both sides makes at least one of them see the
//! other. The waker that exchanges `asleep` from 1 to 0 wakes: a batch of pushes by several peers
//! costs one system call.

use std::time::Duration;

use crate::sync::{AtomicU32, Ordering, fence};

/// A kernel primitive to sleep on `asleep` and to end that sleep.
pub trait WakeupPrimitive {
    /// Sleeps while `asleep` is 1 and no process wakes it, at most for `timeout`. May return early.
    fn wait_asleep(&self, asleep: &AtomicU32, timeout: Option<Duration>);
    /// Wakes one sleeper.
    fn wake_one(&self, asleep: &AtomicU32);
}

/// Sleeps unless `ready`, which must check every source of wakeups. Returns true if it slept.
/// Spurious wakeups are allowed.
pub fn sleep_unless_ready(
    asleep: &AtomicU32,
    primitive: &impl WakeupPrimitive,
    timeout: Option<Duration>,
    mut ready: impl FnMut() -> bool,
) -> bool {
    let sleeps = announce_sleep(asleep, &mut ready);
    if sleeps {
        primitive.wait_asleep(asleep, timeout);
        clear_asleep(asleep);
    }
    sleeps
}

/// First half of [`sleep_unless_ready`], for event loops: announces the sleep and checks for work
/// again. Returns false when there is work; then the endpoint is awake.
pub fn announce_sleep(asleep: &AtomicU32, ready: &mut impl FnMut() -> bool) -> bool {
    // Relaxed: the fence below orders this store before the check; it pairs with the waker's fence.
    asleep.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    let sleeps = !ready();
    if !sleeps {
        clear_asleep(asleep);
    }
    sleeps
}

/// Marks the endpoint as awake.
pub fn clear_asleep(asleep: &AtomicU32) {
    // Relaxed: a waker that still reads 1 causes one spurious wakeup.
    asleep.store(0, Ordering::Relaxed);
}

/// Wakes the endpoint if it sleeps; returns true if it did. The caller issued a full fence after
/// its last push.
pub fn wake_if_asleep(asleep: &AtomicU32, primitive: &impl WakeupPrimitive) -> bool {
    // Load before swap: an awake endpoint costs its peers no exclusive cache line.
    let mine = asleep.load(Ordering::Relaxed) == 1 && asleep.swap(0, Ordering::AcqRel) == 1;
    if mine {
        primitive.wake_one(asleep);
    }
    mine
}
