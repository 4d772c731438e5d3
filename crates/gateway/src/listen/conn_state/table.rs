//! Every connection of a thread, and the sweep over them.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::Life;
use super::timeouts::{Patience, judge};

/// Every connection of a thread.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    all: RefCell<Vec<Arc<Life>>>,
    draining: Cell<bool>,
}

impl Lives {
    /// Adds a connection.
    pub(crate) fn add(&self, life: Arc<Life>) {
        self.all.borrow_mut().push(life);
    }

    /// Forgets one that has ended.
    pub(crate) fn remove(&self, life: &Arc<Life>) {
        let mut lives = self.all.borrow_mut();
        if let Some(at) = lives.iter().position(|known| Arc::ptr_eq(known, life)) {
            lives.swap_remove(at);
        }
    }

    /// Cuts those that took too long, and wakes those that should listen to their callers again. Gives the number of cuts.
    pub(crate) fn sweep(&self, now: u32, patience: &Patience) -> u64 {
        if self.draining.get() {
            self.tell_all(now);
        }
        let lives = self.all.borrow();
        lives.iter().filter(|life| life.is_overheard(now)).for_each(|life| life.wake());
        let late = lives.iter().filter(|life| judge(life.pulse(), now, patience).is_some());
        late.map(|life| life.cut()).count() as u64
    }

    /// Tells all of them to end after the requests that they have; those that have just begun are told by a later sweep, so that their first
    /// request, which is on its way, is one of these.
    pub(crate) fn drain(&self, now: u32) {
        self.draining.set(true);
        self.tell_all(now);
    }

    fn tell_all(&self, now: u32) {
        let lives = self.all.borrow();
        lives.iter().filter(|life| !life.is_draining() && !life.is_expected(now)).for_each(|life| life.drain());
    }
}
