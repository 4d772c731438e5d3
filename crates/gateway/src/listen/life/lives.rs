//! Every connection of a thread, and the sweep over them.

use std::cell::RefCell;
use std::sync::Arc;

use super::Life;
use super::judge::{Patience, judge};

/// Every connection of a thread.
#[derive(Debug, Default)]
pub(crate) struct Lives(RefCell<Vec<Arc<Life>>>);

impl Lives {
    /// Adds a connection.
    pub(crate) fn add(&self, life: Arc<Life>) {
        self.0.borrow_mut().push(life);
    }

    /// Forgets one that has ended.
    pub(crate) fn remove(&self, life: &Arc<Life>) {
        let mut lives = self.0.borrow_mut();
        if let Some(at) = lives.iter().position(|known| Arc::ptr_eq(known, life)) {
            lives.swap_remove(at);
        }
    }

    /// Cuts those that took too long, and wakes those that should listen to their callers again. Gives the number of cuts.
    pub(crate) fn sweep(&self, now: u32, patience: &Patience) -> u64 {
        let lives = self.0.borrow();
        lives.iter().filter(|life| life.is_overheard(now)).for_each(|life| life.wake());
        let late = lives.iter().filter(|life| judge(life.pulse(), now, patience).is_some());
        late.map(|life| life.cut()).count() as u64
    }

    /// Tells all of them to end after the requests that they have.
    pub(crate) fn drain(&self) {
        self.0.borrow().iter().for_each(|life| life.drain());
    }
}
