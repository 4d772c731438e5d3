//! How many edges of a worker do at once what takes it time: answer a call, look for a direct way.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nearpath_p2p::Transport;
use nearpath_p2p::driver::{LocalPorts, SearchOutcome};
use nearpath_p2p::link::LinkStatus;
use nearpath_p2p::migrate::{StreamPath, StreamPaths};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Leave to look for a direct way is given back after so long, however it goes: who waits for who waits is not waited for.
const SEARCH_PERMIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Waits for leave to answer a call. The next one has it when the edge is there and over, or no short one, or has had its time for
/// either.
pub(crate) async fn acquire_answer_permit(
    answer_permits: Arc<Semaphore>,
    known: oneshot::Receiver<LinkStatus>,
    connect_limit: Duration,
    short_limit: Duration,
) {
    let permit = answer_permits.acquire_owned().await;
    tokio::spawn(async move {
        if let Ok(Ok(known)) = timeout(connect_limit, known).await {
            let _ = timeout(short_limit, wait_until_long_or_closed(known)).await;
        }
        drop(permit);
    });
}

/// For a search, once there is leave to begin it. That is given back when the search is settled, or after a while.
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

/// Until it is over, or carries more than the line takes.
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

/// Until the sockets of the search are closed: with the last byte that goes over the relay, or when there is no direct way.
async fn wait_until_search_ends(known: oneshot::Receiver<LinkStatus>) {
    let Ok(mut known) = known.await else { return };
    let verdict = known
        .outcome
        .wait_for(|verdict| *verdict != SearchOutcome::Searching)
        .await
        .map(|known| *known);
    tracing::debug!(?verdict, "the search for a direct way is over");
    if let Ok(SearchOutcome::Direct { .. }) = verdict {
        let direct = StreamPaths {
            outgoing: StreamPath::Direct,
            incoming: StreamPath::Direct,
        };
        let _ = known.paths.wait_for(|places| *places == direct).await; // the way may have ended before
    }
}
