//! Writes of which a function was told that they are done (`writes=async`): those that are under way, and those that failed.
//!
//! A failure is told once in the function's log, and once to the function: at its next connection to the destination, or at the next command of the same
//! one. Nobody else hears of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use nearpath_types::FunctionId;
use tokio::sync::Notify;

use crate::Caller;

/// Functions and destinations with failures that are remembered.
const MOST: usize = 4_096;

/// A line for a function's log about a destination.
pub type Say = Box<dyn Fn(&Caller, &str, &str)>;

/// See the module.
#[derive(Default)]
pub struct Unwritten {
    failed: RefCell<BTreeMap<(FunctionId, String), String>>,
    under_way: Cell<usize>,
    settled: Notify,
    say: Option<Say>,
}

/// Something that is being delivered, until this is dropped.
#[derive(Debug)]
pub struct Delivery(Rc<Unwritten>);

impl Unwritten {
    /// Lines for logs go to `say`.
    pub fn told_by(say: Say) -> Self {
        Self { say: Some(say), ..Self::default() }
    }

    /// What a function wrote to a destination did not get there.
    pub fn failed(&self, caller: &Caller, to: &str, why: &str) {
        if let Some(say) = &self.say {
            say(caller, to, &format!("a write to {to} that was taken did not get there: {why}"));
        }
    }

    /// The same, and the function hears of it when it comes next.
    pub fn owe(&self, caller: &Caller, to: &str, why: &str) {
        let mut failed = self.failed.borrow_mut();
        if failed.len() >= MOST {
            failed.pop_first();
        }
        failed.insert((caller.function.clone(), to.to_owned()), why.to_owned());
    }

    /// What a function has to be told of a destination, once.
    pub fn take(&self, function: &FunctionId, to: &str) -> Option<String> {
        let mut failed = self.failed.borrow_mut();
        if failed.is_empty() {
            return None;
        }
        failed.remove(&(function.clone(), to.to_owned()))
    }

    /// A connection whose writes are taken early.
    pub fn begin(self: &Rc<Self>) -> Delivery {
        self.under_way.set(self.under_way.get() + 1);
        Delivery(Rc::clone(self))
    }

    /// When nothing is under way.
    pub async fn settled(&self) {
        while self.under_way.get() > 0 {
            self.settled.notified().await;
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
        if self.0.under_way.get() == 0 {
            self.0.settled.notify_waiters();
            self.0.settled.notify_one();
        }
    }
}

impl fmt::Debug for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} under way", self.under_way.get())
    }
}

#[cfg(test)]
mod tests {
    use nearpath_types::InstanceId;

    use super::*;

    fn caller(name: &str) -> Caller {
        Caller { instance: InstanceId(1), function: name.parse().unwrap() }
    }

    #[test]
    fn a_failure_is_told_once_to_whose_it_is() {
        let unwritten = Unwritten::default();
        let (a, b) = (caller("a.ns"), caller("b.ns"));
        unwritten.owe(&a, "db:1", "refused");
        assert_eq!(unwritten.take(&b.function, "db:1"), None);
        assert_eq!(unwritten.take(&a.function, "db:2"), None);
        assert_eq!(unwritten.take(&a.function, "db:1").as_deref(), Some("refused"));
        assert_eq!(unwritten.take(&a.function, "db:1"), None);
    }

    #[test]
    fn what_is_owed_is_bounded() {
        let unwritten = Unwritten::default();
        let a = caller("a.ns");
        (0..MOST + 10).for_each(|port| unwritten.owe(&a, &format!("db:{port}"), "refused"));
        assert_eq!(unwritten.failed.borrow().len(), MOST);
    }
}
