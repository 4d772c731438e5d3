//! What handlers wait for in the event loop. Nothing does for long.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use slab::Slab;
use tokio::sync::Notify;

use super::{EventHandler, or_abandon};

/// Interval at which waits get older. One ends after one to two of them. An estimate, not measured: long
/// against usual calls, and short against time limits.
const SWEEP_INTERVAL: Duration = Duration::from_millis(10);

struct Wait {
    /// Period in which it began.
    period: u64,
    handler: Rc<dyn EventHandler>,
}

/// Waits of one thread. No wait has a timer of its own.
#[derive(Default)]
pub(super) struct Waits {
    open: RefCell<Slab<Wait>>,
    period: Cell<u64>,
    is_sweeping: Cell<bool>,
    begun: Notify,
}

impl Waits {
    pub(super) fn add(&self, handler: Rc<dyn EventHandler>) -> usize {
        if !self.is_sweeping.replace(true) {
            self.begun.notify_one();
        }
        let period = self.period.get();
        self.open.borrow_mut().insert(Wait { period, handler })
    }

    pub(super) fn remove(&self, key: usize) {
        let removed = self.open.borrow_mut().try_remove(key);
        drop(removed); // without the borrow
    }

    /// Takes the handlers of all waits.
    pub(super) fn take(&self) -> Vec<Rc<dyn EventHandler>> {
        let open = self.open.take();
        open.into_iter().map(|(_, wait)| wait.handler).collect()
    }

    /// Ends overdue waits.
    pub(super) async fn end_overdue(&self) {
        loop {
            self.begun.notified().await;
            while !self.open.borrow().is_empty() {
                tokio::time::sleep(SWEEP_INTERVAL).await;
                self.end_period();
            }
            self.is_sweeping.set(false);
        }
    }

    /// Ends a period, and the waits that began before it.
    fn end_period(&self) {
        let period = self.period.get();
        self.period.set(period + 1);
        for handler in self.begun_before(period) {
            or_abandon(handler, EventHandler::handle_overdue_wait);
        }
    }

    fn begun_before(&self, period: u64) -> Vec<Rc<dyn EventHandler>> {
        let open = self.open.borrow();
        let old = open.iter().filter(|(_, wait)| wait.period < period);
        old.map(|(_, wait)| wait.handler.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_loop::tests::Recorder;

    #[test]
    fn a_wait_is_overdue_after_a_whole_period() {
        let waits = Waits::default();
        let (early, late) = (Rc::<Recorder>::default(), Rc::<Recorder>::default());
        let counts = || [&early, &late].map(|one| one.calls.borrow().len());
        let early_key = waits.add(early.clone());
        waits.end_period();
        assert_eq!(counts(), [0, 0], "it began within the period");
        let late_key = waits.add(late.clone());
        waits.end_period();
        assert_eq!(counts(), [1, 0]);
        waits.remove(early_key);
        waits.end_period();
        assert_eq!(counts(), [1, 1], "the first one has ended");
        waits.remove(late_key);
        waits.end_period();
        assert_eq!(counts(), [1, 1]);
    }
}
