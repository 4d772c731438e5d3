//! Freezing an instance: it has to be idle, because a frozen one gives no answers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{sleep, timeout};

use super::requests::StopRequest;
use crate::machine::InstanceProcess;

/// Maximum wait for the gateway to release an instance.
pub(super) const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two looks for calls. The gateway keeps idle connections for half a second.
const CALLS_INTERVAL: Duration = Duration::from_millis(50);

/// End of the wait for an instance's calls to end.
pub(super) struct IdleOutcome {
    /// Maximum time to stop if it cannot be frozen.
    stop_timeout: Duration,
    /// Reason why it is not idle.
    waited: io::Result<()>,
}

/// Progress of freezing an instance.
pub(super) enum SleepState {
    /// Nothing is pending: it runs, or it is frozen.
    Settled,
    /// It ends its calls. Dropping this lets it go on.
    AwaitingIdle(BoxFuture<'static, IdleOutcome>),
}

impl SleepState {
    /// Begins to wait until an instance has no calls.
    pub(super) fn begin(process: Arc<dyn InstanceProcess>, request: StopRequest) -> Self {
        Self::AwaitingIdle(Box::pin(async move {
            let stop_timeout = request.timeout;
            // A call on its way would meet a frozen process.
            let _ = timeout(SETTLE_TIMEOUT, request.withdrawn).await;
            let waited = timeout(stop_timeout, wait_idle(process)).await;
            let late = |_| Err(io::Error::other("its calls did not end in time"));
            IdleOutcome {
                stop_timeout,
                waited: waited.unwrap_or_else(late),
            }
        }))
    }

    /// Waits until the instance is idle; for ever when nothing is pending.
    pub(super) async fn wait_idle(&mut self) -> IdleOutcome {
        let outcome = match self {
            Self::Settled => std::future::pending().await,
            Self::AwaitingIdle(waiting) => waiting.await,
        };
        *self = Self::Settled;
        outcome
    }
}

/// Freezes an idle instance.
///
/// # Errors
/// Returns a request to stop it if it is not idle, or the kernel refuses.
pub(super) async fn freeze_idle(
    process: &Arc<dyn InstanceProcess>,
    IdleOutcome {
        stop_timeout,
        waited,
    }: IdleOutcome,
) -> Result<(), StopRequest> {
    let process = process.clone();
    let frozen = tokio::task::spawn_blocking(move || waited.and_then(|()| process.freeze()));
    let frozen = frozen.await.expect("freezing does not panic");
    frozen.map_err(|error| {
        tracing::warn!(%error, "instance could not be frozen and stops");
        StopRequest {
            withdrawn: Box::pin(std::future::ready(())),
            timeout: stop_timeout,
        }
    })
}

async fn wait_idle(process: Arc<dyn InstanceProcess>) -> io::Result<()> {
    loop {
        let looking = process.clone();
        let has_calls = tokio::task::spawn_blocking(move || looking.has_calls()).await;
        if !has_calls.expect("looking does not panic")? {
            return Ok(());
        }
        sleep(CALLS_INTERVAL).await;
    }
}
