//! The task that polls functions and makes their autoscalers decide.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::function_scaler::PollPace;
use super::handle::AutoscalerHandle;
use super::load_reader::LoadReader;

/// Interval of polls of functions with calls, or with more replicas than their minimum.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of polls of functions without calls. It is below the autoscaler's
/// [`MAX_SAMPLE_INTERVAL`](nearpath_autoscaler::MAX_SAMPLE_INTERVAL), so idle time has no gaps.
const IDLE_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Polls autoscaled functions while any of them is awake and its replicas may change.
pub(crate) struct ScaleDriver {
    autoscaler: Arc<AutoscalerHandle>,
    reader: LoadReader,
}

impl ScaleDriver {
    /// Creates a driver.
    pub(crate) fn new(autoscaler: Arc<AutoscalerHandle>, reader: LoadReader) -> Self {
        Self { autoscaler, reader }
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let changed = self.autoscaler.changed().clone();
        loop {
            match self.poll().await {
                PollPace::Active => drop(timeout(POLL_INTERVAL, changed.notified()).await),
                PollPace::Idle => drop(timeout(IDLE_POLL_INTERVAL, changed.notified()).await),
                PollPace::Parked => changed.notified().await,
            }
        }
    }

    /// Polls all functions that are awake, and returns when to poll again.
    async fn poll(&self) -> PollPace {
        let targets = self.autoscaler.poll_targets();
        let counted = self.reader.read_all(&targets).await;
        let pace = self.autoscaler.observe(&counted);
        if pace == PollPace::Active {
            return pace;
        }
        let listener = self.autoscaler.changed();
        match self.reader.notify_next_requests(&counted, listener) {
            true => pace,
            false => PollPace::Active,
        }
    }
}
