//! Connections of one gateway thread, and the sweep that ends overdue ones.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use nearpath_daemon::drain::DrainCause;

use super::ConnState;
use super::timeouts::{ConnTimeouts, overdue_reason};

/// Connections of one gateway thread. Times are in ticks ([`TICK_INTERVAL`](crate::context::TICK_INTERVAL)).
#[derive(Debug, Default)]
pub(crate) struct ConnTable {
    states: RefCell<Vec<Arc<ConnState>>>,
    draining: Cell<Option<DrainCause>>,
}

impl ConnTable {
    /// Adds a connection.
    pub(crate) fn add_connection(&self, state: Arc<ConnState>) {
        self.states.borrow_mut().push(state);
    }

    /// Removes a connection that has ended.
    pub(crate) fn remove_connection(&self, state: &Arc<ConnState>) {
        let mut states = self.states.borrow_mut();
        // A linear search, once per connection: a stored index would change with every removal. From
        // the end: most connections that end are young.
        if let Some(index) = states.iter().rposition(|other| Arc::ptr_eq(other, state)) {
            states.swap_remove(index);
        }
    }

    /// Cuts overdue connections, and wakes the tasks of those whose pause in reading is over.
    /// Returns the number of cuts.
    pub(crate) fn cut_overdue(&self, now: u32, timeouts: &ConnTimeouts) -> u64 {
        if let Some(cause) = self.draining.get() {
            // Connections whose first request was still due at the last sweep.
            self.drain_established(now, cause);
        }
        let states = self.states.borrow();
        states
            .iter()
            .filter(|state| state.is_resume_due(now))
            .for_each(|state| state.wake_task());
        let overdue = states
            .iter()
            .filter(|state| overdue_reason(state.take_snapshot(), now, timeouts).is_some());
        overdue.map(|state| state.cut_connection()).count() as u64
    }

    /// Ends all connections after their open requests. A new connection is left to a later sweep:
    /// its first request may already be in flight and must be served.
    pub(crate) fn drain_all(&self, now: u32, cause: DrainCause) {
        self.draining.set(Some(cause));
        self.drain_established(now, cause);
    }

    fn drain_established(&self, now: u32, cause: DrainCause) {
        let states = self.states.borrow();
        states
            .iter()
            .filter(|state| !state.is_draining() && !state.is_service())
            .for_each(|state| state.drain_because(cause, now));
    }
}
