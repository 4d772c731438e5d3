//! Graceful shutdown: one [`DrainTrigger`] and any number of [`DrainWatch`]es.
//!
//! A part that must not be cut off keeps a watch while it has work. [`DrainTrigger::drain`]
//! notifies all watches and returns when the last one is dropped.

use tokio::sync::{mpsc, watch};

/// Cause of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainCause {
    /// The process stops.
    Stop,
    /// Another process has taken over: callers reach it on the same ports.
    Replaced,
}

/// Starts the drain and waits for it.
#[derive(Debug)]
pub struct DrainTrigger {
    signal: watch::Sender<Option<DrainCause>>,
    watches: mpsc::Receiver<()>,
}

/// Observes the drain; the drain is not over while any watch is held.
#[derive(Debug, Clone)]
pub struct DrainWatch {
    signal: watch::Receiver<Option<DrainCause>>,
    _hold: mpsc::Sender<()>,
}

/// Returns a connected pair.
pub fn channel() -> (DrainTrigger, DrainWatch) {
    let (signal, receiver) = watch::channel(None);
    // The capacity is irrelevant: nothing is sent, only the drop of the senders counts.
    let (hold, watches) = mpsc::channel(1);
    (
        DrainTrigger { signal, watches },
        DrainWatch {
            signal: receiver,
            _hold: hold,
        },
    )
}

impl DrainTrigger {
    /// Notifies every watch, then waits until all are dropped. Wrap it in a timeout where work may
    /// never end.
    pub async fn drain(self) {
        self.drain_because(DrainCause::Stop).await;
    }

    /// Does the same for a given cause.
    pub async fn drain_because(mut self, cause: DrainCause) {
        // `send` would keep the old value if no receiver were left.
        self.signal.send_replace(Some(cause));
        // Nothing is ever sent: this ends when the last sender is dropped.
        let _ = self.watches.recv().await;
    }
}

impl DrainWatch {
    /// Waits for the drain to begin. A dropped trigger counts as begun: nothing can start the drain
    /// any more.
    pub async fn signaled(&self) {
        // Cloned, so that several tasks can wait on one watch.
        let mut signal = self.signal.clone();
        let _ = signal.wait_for(Option::is_some).await;
    }

    /// Returns true if the drain has begun.
    pub fn is_draining(&self) -> bool {
        self.cause().is_some()
    }

    /// Returns the cause of the drain; `None` before it has begun.
    pub fn cause(&self) -> Option<DrainCause> {
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
        assert_eq!(other.cause(), Some(DrainCause::Stop));
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
