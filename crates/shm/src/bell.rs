//! How a party goes to sleep and how it is woken, so that no wake-up is lost. Model-checked with `make loom`.
//!
//! The sleeper says that it sleeps, then looks once more; the waker pushes, then looks whether anybody sleeps. A full fence
//! between the two steps on both sides makes at least one of them see the other. Who exchanges `asleep` from 1 to 0 rings;
//! so a batch of pushes by several peers costs one system call.

use std::time::Duration;

use crate::sync::{AtomicU32, Ordering, fence};

/// A way to sleep on `asleep` and to end that sleep.
pub trait Bell {
    /// Sleeps while `asleep` is 1 and nobody rings, at most for `timeout`. May return early.
    fn wait(&self, asleep: &AtomicU32, timeout: Option<Duration>);
    /// Ends the sleep of one sleeper.
    fn ring(&self, asleep: &AtomicU32);
}

/// Sleeps unless `ready`, which must look at everything that somebody would ring for. Returns whether it slept. There may
/// be nothing to do afterwards: a wake-up without a reason is no error.
pub fn sleep(asleep: &AtomicU32, bell: &impl Bell, timeout: Option<Duration>, mut ready: impl FnMut() -> bool) -> bool {
    let sleeps = announce(asleep, &mut ready);
    if sleeps {
        bell.wait(asleep, timeout);
        withdraw(asleep);
    }
    sleeps
}

/// The first half of [`sleep`], for who waits in an event loop: says that the party sleeps, and looks once more. False when
/// there is something to do; then it is awake.
pub fn announce(asleep: &AtomicU32, ready: &mut impl FnMut() -> bool) -> bool {
    asleep.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    let sleeps = !ready();
    if !sleeps {
        withdraw(asleep);
    }
    sleeps
}

/// The party is awake.
pub fn withdraw(asleep: &AtomicU32) {
    asleep.store(0, Ordering::Relaxed);
}

/// Rings if the party sleeps; returns whether it did. The caller has made a full fence after its last push.
pub fn knock(asleep: &AtomicU32, bell: &impl Bell) -> bool {
    let mine = asleep.load(Ordering::Relaxed) == 1 && asleep.swap(0, Ordering::AcqRel) == 1;
    if mine {
        bell.ring(asleep);
    }
    mine
}
