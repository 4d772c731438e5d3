//! The machine's clocks, for [`crate::state`], which reads none itself.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::state::ClockReading;

impl ClockReading {
    /// The present, by both clocks.
    pub(crate) fn now() -> Self {
        let unix = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            at: Instant::now(),
            unix: unix.as_secs(),
        }
    }
}
