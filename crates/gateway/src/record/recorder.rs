//! Destination of the completion records of one thread.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::access_log::AccessLog;
use super::totals::GatewayTotals;

/// Interval of lines about silent responses in the log of the process, for each thread.
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);

/// Counters and log for the completed requests of a thread.
pub(crate) struct CompletionRecorder {
    /// Counters that belong to no function.
    pub totals: Arc<GatewayTotals>,
    /// Access log, if enabled.
    pub log: Option<AccessLog>,
    is_cutting: Cell<bool>,
    /// Time of the last line about a silent response, and the lines suppressed since.
    last_notice: Cell<Option<(Instant, u64)>>,
}

impl CompletionRecorder {
    /// Creates the recorder of a serving thread.
    pub(crate) fn new(totals: Arc<GatewayTotals>, log: Option<AccessLog>) -> Self {
        Self {
            totals,
            log,
            is_cutting: Cell::new(false),
            last_notice: Cell::new(None),
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

    /// Returns how many lines about silent responses were suppressed, if the next one is due. A
    /// function chooses how often it is silent.
    pub(super) fn take_silence_notice(&self, now: Instant) -> Option<u64> {
        match self.last_notice.get() {
            Some((last, suppressed)) if now.saturating_duration_since(last) < NOTICE_INTERVAL => {
                self.last_notice.set(Some((last, suppressed + 1)));
                None
            }
            last => {
                self.last_notice.set(Some((now, 0)));
                Some(last.map_or(0, |(_, suppressed)| suppressed))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_counts_the_suppressed_ones() {
        let recorder = CompletionRecorder::new(Arc::default(), None);
        let start = Instant::now();
        let at = |millis| recorder.take_silence_notice(start + Duration::from_millis(millis));
        assert_eq!(
            [at(0), at(1), at(999), at(1_000), at(2_500)],
            [Some(0), None, None, Some(2), Some(0)]
        );
    }
}
