//! The serving threads that have connections, for the drain.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the threads that have connections.
#[derive(Debug, Clone, Default)]
pub(crate) struct BusyThreads(Arc<AtomicUsize>);

/// A thread that counts as busy, until it says otherwise or this is dropped.
#[derive(Debug)]
pub(crate) struct BusyThread {
    all: BusyThreads,
    is_busy: bool,
}

impl BusyThreads {
    /// Adds a busy thread.
    pub(crate) fn add_thread(&self) -> BusyThread {
        let mut thread = BusyThread {
            all: self.clone(),
            is_busy: false,
        };
        thread.set_busy(true);
        thread
    }
}

impl BusyThread {
    /// Sets whether this thread has connections.
    pub(crate) fn set_busy(&mut self, is_busy: bool) {
        // Orders nothing else: a thread that sees no busy one looks at its own connections again.
        match (self.is_busy, is_busy) {
            (false, true) => self.all.0.fetch_add(1, Ordering::SeqCst),
            (true, false) => self.all.0.fetch_sub(1, Ordering::SeqCst),
            _ => return,
        };
        self.is_busy = is_busy;
    }

    /// Returns whether any thread has connections.
    pub(crate) fn is_any_busy(&self) -> bool {
        self.all.0.load(Ordering::SeqCst) > 0
    }
}

impl Drop for BusyThread {
    fn drop(&mut self) {
        self.set_busy(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_counts_once_while_it_is_busy() {
        let all = BusyThreads::default();
        let (mut one, mut other) = (all.add_thread(), all.add_thread());
        one.set_busy(false);
        one.set_busy(false);
        assert!(one.is_any_busy());
        other.set_busy(false);
        assert!(!one.is_any_busy());
        one.set_busy(true);
        assert!(other.is_any_busy());
        drop(one);
        assert!(!other.is_any_busy());
    }
}
