//! The destination of one thread's completion records.

use std::cell::Cell;
use std::sync::Arc;

use super::access_log::AccessLog;
use super::totals::GatewayTotals;

/// The counters and the log that a thread's requests end in.
pub(crate) struct CompletionRecorder {
    /// Counters beside those of functions.
    pub totals: Arc<GatewayTotals>,
    /// The access log, if there is one.
    pub log: Option<AccessLog>,
    is_cutting: Cell<bool>,
}

impl CompletionRecorder {
    /// A recorder of a thread that serves.
    pub(crate) fn new(totals: Arc<GatewayTotals>, log: Option<AccessLog>) -> Self {
        Self {
            totals,
            log,
            is_cutting: Cell::new(false),
        }
    }

    /// Notes that the drain's time is over: requests that end from now on were cut by it.
    pub(crate) fn begin_cutting(&self) {
        self.is_cutting.set(true);
    }

    /// Returns whether the drain's time is over.
    pub(super) fn is_cutting(&self) -> bool {
        self.is_cutting.get()
    }
}
