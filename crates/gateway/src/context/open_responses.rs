//! Open responses of a thread, and the sweep that cuts overdue ones.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use slab::Slab;

/// A response that is not complete.
pub(crate) trait OpenResponse {
    /// Cuts the response after its deadline, or if its caller took nothing for more than
    /// `max_idle_ticks` ticks.
    fn cut_if_overdue(&self, now: Instant, tick: u32, max_idle_ticks: u32);
}

/// The open responses of a thread.
#[derive(Default)]
pub(crate) struct OpenResponses(RefCell<Slab<Rc<dyn OpenResponse>>>);

impl OpenResponses {
    /// Adds a response; returns its key.
    pub(crate) fn add(&self, response: Rc<dyn OpenResponse>) -> usize {
        self.0.borrow_mut().insert(response)
    }

    /// Removes a response.
    pub(crate) fn remove(&self, key: usize) {
        // Dropped after the borrow: a response may hold the last reference to more of them.
        let removed = self.0.borrow_mut().try_remove(key);
        drop(removed);
    }

    /// Cuts every response that is overdue.
    pub(crate) fn cut_overdue(&self, now: Instant, tick: u32, max_idle_ticks: u32) {
        // Copied, because a response that is cut removes itself.
        let open: Vec<_> = self.0.borrow().iter().map(|(_, one)| one.clone()).collect();
        for response in open {
            response.cut_if_overdue(now, tick, max_idle_ticks);
        }
    }
}
