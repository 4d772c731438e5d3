//! Every connection of a thread, and the sweep over them.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::ConnState;
use super::timeouts::{ConnTimeouts, overdue_reason};

/// Every connection of a thread.
#[derive(Debug, Default)]
pub(crate) struct ConnTable {
    states: RefCell<Vec<Arc<ConnState>>>,
    is_draining: Cell<bool>,
}

impl ConnTable {
    /// Adds a connection.
    pub(crate) fn add_connection(&self, state: Arc<ConnState>) {
        self.states.borrow_mut().push(state);
    }

    /// Forgets one that has ended.
    pub(crate) fn remove_connection(&self, state: &Arc<ConnState>) {
        let mut states = self.states.borrow_mut();
        if let Some(at) = states.iter().position(|known| Arc::ptr_eq(known, state)) {
            states.swap_remove(at);
        }
    }

    /// Cuts those that took too long, and wakes those that should listen to their callers again. Gives the number of cuts.
    pub(crate) fn cut_overdue(&self, now: u32, timeouts: &ConnTimeouts) -> u64 {
        if self.is_draining.get() {
            self.drain_established(now);
        }
        let states = self.states.borrow();
        states
            .iter()
            .filter(|state| state.is_resume_due(now))
            .for_each(|life| life.wake_task());
        let overdue = states
            .iter()
            .filter(|state| overdue_reason(state.take_snapshot(), now, timeouts).is_some());
        overdue.map(|state| state.cut_connection()).count() as u64
    }

    /// Tells all of them to end after the requests that they have; those that have just begun are told by a later sweep, so that their first
    /// request, which is on its way, is one of these.
    pub(crate) fn drain_all(&self, now: u32) {
        self.is_draining.set(true);
        self.drain_established(now);
    }

    fn drain_established(&self, now: u32) {
        let states = self.states.borrow();
        states
            .iter()
            .filter(|state| !state.is_draining() && !state.is_awaiting_first_request(now))
            .for_each(|life| life.drain_connection());
    }
}
