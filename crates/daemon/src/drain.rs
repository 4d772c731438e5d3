//! An orderly end: one [`DrainTrigger`], any number of [`DrainWatch`]es.
//!
//! A part of the program that may not be cut off keeps a `DrainWatch` for as long as it has work. [`DrainTrigger::drain`] tells all
//! of them and returns when the last one is dropped.

use tokio::sync::{mpsc, watch};

/// Starts the drain and waits for it.
#[derive(Debug)]
pub struct DrainTrigger {
    signal: watch::Sender<bool>,
    watches: mpsc::Receiver<()>,
}

/// Hears of the drain; while any is held, the drain is not over.
#[derive(Debug, Clone)]
pub struct DrainWatch {
    signal: watch::Receiver<bool>,
    _hold: mpsc::Sender<()>,
}

/// A connected pair.
pub fn channel() -> (DrainTrigger, DrainWatch) {
    let (signal, heard) = watch::channel(false);
    let (hold, held) = mpsc::channel(1);
    (
        DrainTrigger {
            signal,
            watches: held,
        },
        DrainWatch {
            signal: heard,
            _hold: hold,
        },
    )
}

impl DrainTrigger {
    /// Tells every watch, then waits until all are dropped. Bound it with a timeout where work may never end.
    pub async fn drain(mut self) {
        self.signal.send_replace(true);
        let _ = self.watches.recv().await; // nothing is ever sent: this ends when the last sender is dropped
    }
}

impl DrainWatch {
    /// Waits for the drain to begin. A trigger that was dropped counts as begun: nobody is left to ask for more work.
    pub async fn signaled(&self) {
        let mut signal = self.signal.clone();
        let _ = signal.wait_for(|draining| *draining).await;
    }

    /// Whether it has begun.
    pub fn is_draining(&self) -> bool {
        *self.signal.borrow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_drain_waits_for_the_last_watch() {
        let (trigger, watch) = channel();
        let other = watch.clone();
        let drained = tokio::spawn(trigger.drain());
        watch.signaled().await;
        drop(watch);
        tokio::task::yield_now().await;
        assert!(!drained.is_finished(), "one watch is still held");
        drop(other);
        drained.await.unwrap();
    }

    #[tokio::test]
    async fn a_dropped_trigger_starts_the_drain() {
        let (trigger, watch) = channel();
        drop(trigger);
        watch.signaled().await;
    }
}
