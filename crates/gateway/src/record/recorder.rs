//! Destination of the completion records of one thread.

use std::cell::Cell;
use std::sync::Arc;

use super::access_log::AccessLog;
use super::totals::GatewayTotals;

/// Counters and log for the completed requests of a thread.
pub(crate) struct CompletionRecorder {
    /// Counters that belong to no function.
    pub totals: Arc<GatewayTotals>,
    /// Access log, if enabled.
    pub log: Option<AccessLog>,
    is_cutting: Cell<bool>,
}

impl CompletionRecorder {
    /// Creates the recorder of a serving thread.
    pub(crate) fn new(totals: Arc<GatewayTotals>, log: Option<AccessLog>) -> Self {
        Self {
            totals,
            log,
            is_cutting: Cell::new(false),
        }
    }

    /// Notes the end of the drain timeout: requests that end from now on were cut by it.
    pub(crate) fn begin_cutting(&self) {
        self.is_cutting.set(true);
    }

    /// Returns whether the drain timeout has passed.
    pub(super) fn is_cutting(&self) -> bool {
        self.is_cutting.get()
    }
}
