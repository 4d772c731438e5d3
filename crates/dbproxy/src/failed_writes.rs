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

use crate::ClientInstance;

/// Functions and destinations with failures that are remembered.
const MAX_REMEMBERED_FAILURES: usize = 4_096;

/// A line for a function's log about a destination.
pub type FunctionLogger = Box<dyn Fn(&ClientInstance, &str, &str)>;

/// See the module.
#[derive(Default)]
pub struct FailedWrites {
    failures: RefCell<BTreeMap<(FunctionId, String), String>>,
    in_flight: Cell<usize>,
    all_delivered: Notify,
    logger: Option<FunctionLogger>,
}

/// Something that is being delivered, until this is dropped.
#[derive(Debug)]
pub struct DeliveryGuard(Rc<FailedWrites>);

impl FailedWrites {
    /// Lines for logs go to `say`.
    pub fn with_logger(say: FunctionLogger) -> Self {
        Self {
            logger: Some(say),
            ..Self::default()
        }
    }

    /// What a function wrote to a destination did not get there.
    pub fn log_failure(&self, caller: &ClientInstance, to: &str, why: &str) {
        if let Some(say) = &self.logger {
            say(
                caller,
                to,
                &format!("a write to {to} that was taken did not get there: {why}"),
            );
        }
    }

    /// The same, and the function hears of it when it comes next.
    pub fn report_later(&self, caller: &ClientInstance, to: &str, why: &str) {
        let mut failed = self.failures.borrow_mut();
        if failed.len() >= MAX_REMEMBERED_FAILURES {
            failed.pop_first();
        }
        failed.insert((caller.function.clone(), to.to_owned()), why.to_owned());
    }

    /// What a function has to be told of a destination, once.
    pub fn take_failure(&self, function: &FunctionId, to: &str) -> Option<String> {
        let mut failed = self.failures.borrow_mut();
        if failed.is_empty() {
            return None;
        }
        failed.remove(&(function.clone(), to.to_owned()))
    }

    /// A connection whose writes are taken early.
    pub fn begin_delivery(self: &Rc<Self>) -> DeliveryGuard {
        self.in_flight.set(self.in_flight.get() + 1);
        DeliveryGuard(Rc::clone(self))
    }

    /// When nothing is under way.
    pub async fn wait_delivered(&self) {
        while self.in_flight.get() > 0 {
            self.all_delivered.notified().await;
        }
    }
}

impl Drop for DeliveryGuard {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        if self.0.in_flight.get() == 0 {
            self.0.all_delivered.notify_waiters();
            self.0.all_delivered.notify_one();
        }
    }
}

impl fmt::Debug for FailedWrites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} under way", self.in_flight.get())
    }
}

#[cfg(test)]
mod tests {
    use nearpath_types::InstanceId;

    use super::*;

    fn client_instance(name: &str) -> ClientInstance {
        ClientInstance {
            instance: InstanceId(1),
            function: name.parse().unwrap(),
        }
    }

    #[test]
    fn a_failure_is_reported_once_to_its_function() {
        let unwritten = FailedWrites::default();
        let (a, b) = (client_instance("a.ns"), client_instance("b.ns"));
        unwritten.report_later(&a, "db:1", "refused");
        assert_eq!(unwritten.take_failure(&b.function, "db:1"), None);
        assert_eq!(unwritten.take_failure(&a.function, "db:2"), None);
        assert_eq!(
            unwritten.take_failure(&a.function, "db:1").as_deref(),
            Some("refused")
        );
        assert_eq!(unwritten.take_failure(&a.function, "db:1"), None);
    }

    #[test]
    fn remembered_failures_are_bounded() {
        let unwritten = FailedWrites::default();
        let a = client_instance("a.ns");
        (0..MAX_REMEMBERED_FAILURES + 10)
            .for_each(|port| unwritten.report_later(&a, &format!("db:{port}"), "refused"));
        assert_eq!(unwritten.failures.borrow().len(), MAX_REMEMBERED_FAILURES);
    }
}
