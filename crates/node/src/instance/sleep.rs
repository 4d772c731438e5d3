//! Freezing an instance: it has to be idle, because a frozen one gives no answers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use nearpath_types::Eip;
use tokio::time::{sleep, timeout};

use super::requests::StopRequest;
use crate::machine::InstanceProcess;

/// Maximum wait for the gateway to release an instance.
pub(super) const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two looks for calls. The gateway keeps idle connections for half a second.
const CALLS_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum time to stop if it cannot be frozen, and whether it is idle.
type IdleOutcome = (Duration, bool);

/// Preparation of an instance for being frozen.
pub(super) enum SleepState {
    /// Nothing is pending: it runs, or it is frozen.
    Settled,
    /// Ends when it has no calls, or its time to stop is over. Dropping it changes nothing.
    Idling(BoxFuture<'static, IdleOutcome>),
}

impl SleepState {
    /// Begins to wait until an instance has no calls.
    pub(super) fn begin(
        process: Arc<dyn InstanceProcess>,
        eip: Option<Eip>,
        request: StopRequest,
    ) -> Self {
        Self::Idling(Box::pin(async move {
            let limit = request.timeout;
            let _ = timeout(SETTLE_TIMEOUT, request.withdrawn).await;
            let idle = timeout(limit, wait_idle(process, eip)).await;
            (limit, matches!(idle, Ok(Ok(()))))
        }))
    }

    /// Waits until the instance is idle; for ever when nothing is pending.
    pub(super) async fn wait_idle(&mut self) -> IdleOutcome {
        let outcome = match self {
            Self::Settled => std::future::pending().await,
            Self::Idling(idling) => idling.await,
        };
        *self = Self::Settled;
        outcome
    }
}

/// Freezes an idle instance.
///
/// # Errors
/// Returns a request to stop if it is not idle, or the kernel refuses.
pub(super) async fn freeze_idle(
    process: &Arc<dyn InstanceProcess>,
    (limit, is_idle): IdleOutcome,
) -> Result<(), StopRequest> {
    let process = process.clone();
    let frozen = tokio::task::spawn_blocking(move || match is_idle {
        true => process.freeze(),
        false => Err(io::Error::other("its calls did not end in time")),
    });
    let frozen = frozen.await.expect("freezing does not panic");
    frozen.map_err(|error| {
        tracing::warn!(%error, "instance could not be frozen and stops");
        StopRequest {
            withdrawn: Box::pin(std::future::ready(())),
            timeout: limit,
        }
    })
}

async fn wait_idle(process: Arc<dyn InstanceProcess>, eip: Option<Eip>) -> io::Result<()> {
    let eip = eip.ok_or(io::ErrorKind::Unsupported)?;
    loop {
        let looking = process.clone();
        let has_calls = tokio::task::spawn_blocking(move || looking.has_calls(eip)).await;
        if !has_calls.expect("looking does not panic")? {
            return Ok(());
        }
        sleep(CALLS_INTERVAL).await;
    }
}
