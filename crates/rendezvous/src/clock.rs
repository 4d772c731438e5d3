//! Clocks of the machine, for [`crate::state`], which reads none.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::state::ClockReading;

impl ClockReading {
    /// Reads both clocks.
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
