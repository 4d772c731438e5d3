//! Writes that were acknowledged before the server executed them (`writes=async`): those in flight,
//! and those that failed.
//!
//! A failure appears once in the function's log. The function also gets it once: at its next
//! command, or at its next connection to the destination. No other function sees it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use nearpath_types::FunctionId;
use tokio::sync::Notify;

use crate::client_instance::{ClientInstance, FunctionLogger};

/// Functions and destinations whose failures are remembered. Bounds the memory that failing
/// functions can take.
const MAX_REMEMBERED_FAILURES: usize = 4_096;

/// Failed and in-flight early writes of all functions.
#[derive(Default)]
pub struct FailedWrites {
    failures: RefCell<BTreeMap<(FunctionId, String), String>>,
    in_flight: Cell<usize>,
    all_delivered: Notify,
    logger: Option<FunctionLogger>,
}

/// An early write in flight; it counts until it is dropped.
#[derive(Debug)]
pub struct DeliveryGuard(Rc<FailedWrites>);

impl FailedWrites {
    /// Creates the table. Lines for function logs go to `logger`.
    pub fn with_logger(logger: FunctionLogger) -> Self {
        Self {
            logger: Some(logger),
            ..Self::default()
        }
    }

    /// Logs that an acknowledged write of a function did not reach the destination.
    pub fn log_failure(&self, caller: &ClientInstance, to: &str, reason: &str) {
        if let Some(logger) = &self.logger {
            logger(
                caller,
                to,
                &format!("acknowledged write to {to} failed: {reason}"),
            );
        }
    }

    /// Stores the failure, so that the function's next connection to the destination reports it.
    pub fn report_later(&self, caller: &ClientInstance, to: &str, reason: &str) {
        let mut failed = self.failures.borrow_mut();
        // Any entry may go: a function whose failure is evicted still has the line in its log.
        if failed.len() >= MAX_REMEMBERED_FAILURES {
            failed.pop_first();
        }
        failed.insert((caller.function.clone(), to.to_owned()), reason.to_owned());
    }

    /// Takes the failure that a function has not seen yet for a destination.
    pub fn take_failure(&self, function: &FunctionId, to: &str) -> Option<String> {
        let mut failed = self.failures.borrow_mut();
        // The common case by far; it spares the copy of the key at each new connection.
        if failed.is_empty() {
            return None;
        }
        failed.remove(&(function.clone(), to.to_owned()))
    }

    /// Registers a connection whose writes are acknowledged early.
    pub fn begin_delivery(self: &Rc<Self>) -> DeliveryGuard {
        self.in_flight.set(self.in_flight.get() + 1);
        DeliveryGuard(Rc::clone(self))
    }

    /// Waits until no early write is in flight.
    pub async fn wait_delivered(&self) {
        // The count is checked again after each wakeup, because another delivery may have begun
        // meanwhile.
        while self.in_flight.get() > 0 {
            self.all_delivered.notified().await;
        }
    }
}

impl Drop for DeliveryGuard {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        if self.0.in_flight.get() == 0 {
            // `notify_waiters` wakes current waiters. `notify_one` leaves a permit for a waiter
            // that checked the count but does not wait yet.
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
            requires_tls: false,
        }
    }

    #[test]
    fn a_failure_is_reported_once_to_its_function() {
        let failed_writes = FailedWrites::default();
        let (a, b) = (client_instance("a.ns"), client_instance("b.ns"));
        failed_writes.report_later(&a, "db:1", "refused");
        assert_eq!(failed_writes.take_failure(&b.function, "db:1"), None);
        assert_eq!(failed_writes.take_failure(&a.function, "db:2"), None);
        assert_eq!(
            failed_writes.take_failure(&a.function, "db:1").as_deref(),
            Some("refused")
        );
        assert_eq!(failed_writes.take_failure(&a.function, "db:1"), None);
    }

    #[test]
    fn remembered_failures_are_bounded() {
        let failed_writes = FailedWrites::default();
        let a = client_instance("a.ns");
        (0..MAX_REMEMBERED_FAILURES + 10)
            .for_each(|port| failed_writes.report_later(&a, &format!("db:{port}"), "refused"));
        assert_eq!(
            failed_writes.failures.borrow().len(),
            MAX_REMEMBERED_FAILURES
        );
    }
}
