//! How many edges of a worker do at once what takes it time: answer a call, look for a direct way.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nearpath_p2p::Transport;
use nearpath_p2p::driver::{Ports, Verdict};
use nearpath_p2p::link::Known;
use nearpath_p2p::migrate::{Place, Places};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Leave to look for a direct way is given back after so long, however it goes: who waits for who waits is not waited for.
const SEARCH: Duration = Duration::from_secs(1);

/// Waits for leave to answer a call. The next one has it when the edge is there and over, or no short one, or has had its time for
/// either.
pub(crate) async fn answer(answers: Arc<Semaphore>, known: oneshot::Receiver<Known>, there: Duration, over: Duration) {
    let leave = answers.acquire_owned().await;
    tokio::spawn(async move {
        if let Ok(Ok(known)) = timeout(there, known).await {
            let _ = timeout(over, until_not_short(known)).await;
        }
        drop(leave);
    });
}

/// For a search, once there is leave to begin it. That is given back when the search is settled, or after a while.
pub(crate) async fn ports(
    searches: Arc<Semaphore>,
    transports: Vec<Transport>,
    known: oneshot::Receiver<Known>,
) -> io::Result<Ports> {
    let leave = searches.acquire_owned().await;
    tokio::spawn(async move {
        let _ = timeout(SEARCH, until_settled(known)).await;
        drop(leave);
    });
    Ports::bind(&transports)
}

/// Until it is over, or carries more than the line takes.
async fn until_not_short(mut known: Known) {
    let looks = known.verdict.wait_for(|verdict| *verdict != Verdict::Unneeded);
    let is_over = async { while known.places.changed().await.is_ok() {} };
    tokio::select! {
        _ = looks => (),
        () = is_over => (),
    }
}

/// Until the sockets of the search are closed: with the last byte that goes over the relay, or when there is no direct way.
async fn until_settled(known: oneshot::Receiver<Known>) {
    let Ok(mut known) = known.await else { return };
    let verdict = known.verdict.wait_for(|verdict| *verdict != Verdict::Looking).await.map(|known| *known);
    tracing::debug!(?verdict, "the search for a direct way is over");
    if let Ok(Verdict::Direct { .. }) = verdict {
        let direct = Places { out: Place::Direct, inward: Place::Direct };
        let _ = known.places.wait_for(|places| *places == direct).await; // the way may have ended before
    }
}
