//! Limits on expensive steps of edges that run at the same time: answering calls, searching for
//! direct paths.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nearpath_p2p::Transport;
use nearpath_p2p::driver::{LocalPorts, SearchOutcome};
use nearpath_p2p::link::LinkStatus;
use nearpath_p2p::migrate::{StreamPath, StreamPaths};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// A permit to search is returned after this time, whatever the result: no edge waits for another
/// one that waits.
const SEARCH_PERMIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Waits for a permit to answer a call. The permit returns when the edge is connected and either
/// closed or known to be long, and at the latest after both limits.
pub(crate) async fn acquire_answer_permit(
    answer_permits: Arc<Semaphore>,
    known: oneshot::Receiver<LinkStatus>,
    connect_limit: Duration,
    short_limit: Duration,
) {
    let permit = answer_permits.acquire_owned().await;
    // In a task of its own: the permit outlives the call to this function, and the edge goes on
    // meanwhile.
    tokio::spawn(async move {
        if let Ok(Ok(known)) = timeout(connect_limit, known).await {
            let _ = timeout(short_limit, wait_until_long_or_closed(known)).await;
        }
        drop(permit);
    });
}

/// Binds the ports of a search once there is a permit. The permit returns when the search has
/// ended, or after [`SEARCH_PERMIT_TIMEOUT`].
pub(crate) async fn bind_search_ports(
    search_permits: Arc<Semaphore>,
    transports: Vec<Transport>,
    known: oneshot::Receiver<LinkStatus>,
) -> io::Result<LocalPorts> {
    let permit = search_permits.acquire_owned().await;
    tokio::spawn(async move {
        let _ = timeout(SEARCH_PERMIT_TIMEOUT, wait_until_search_ends(known)).await;
        drop(permit);
    });
    LocalPorts::bind(&transports)
}

/// Waits until the link is closed or carries more than a control connection does.
async fn wait_until_long_or_closed(mut known: LinkStatus) {
    let starts_search = known
        .outcome
        .wait_for(|verdict| *verdict != SearchOutcome::NotNeeded);
    let is_over = async { while known.paths.changed().await.is_ok() {} };
    tokio::select! {
        _ = starts_search => (),
        () = is_over => (),
    }
}

/// Waits until the sockets of the search are closed: after the last byte over the relay, or when
/// there is no direct path.
async fn wait_until_search_ends(known: oneshot::Receiver<LinkStatus>) {
    let Ok(mut known) = known.await else { return };
    let verdict = known
        .outcome
        .wait_for(|verdict| *verdict != SearchOutcome::Searching)
        .await
        .map(|known| *known);
    tracing::debug!(?verdict, "search for a direct path ended");
    if let Ok(SearchOutcome::Direct { .. }) = verdict {
        let direct = StreamPaths {
            outgoing: StreamPath::Direct,
            incoming: StreamPath::Direct,
        };
        // Fails when the link has closed before.
        let _ = known.paths.wait_for(|places| *places == direct).await;
    }
}
