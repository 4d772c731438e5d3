//! The closed loop: a fixed number of callers, each of which waits for its response before the next
//! request.
//!
//! The closed loop shows capacity but hides stalls: a server that stops for a second delays few
//! requests, not the hundreds that would have come. For behaviour under stress use [`super::open`].
//! Comparisons use [`super::epoll_client`], which costs less CPU time.

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::connection::{self, LoadConnection};
use super::{MeasureWindow, RequestTemplate};
use crate::tally::{RequestFailure, RequestTally};

/// Connection handling of the callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionReuse {
    /// A keep-alive connection for each caller.
    KeepAlive,
    /// A new connection for every request.
    Fresh,
}

/// Runs `callers` callers until the window ends, and counts the responses within it.
pub(crate) async fn run_closed(
    template: &RequestTemplate,
    callers: usize,
    reuse: ConnectionReuse,
    window: MeasureWindow,
) -> RequestTally {
    let template = match reuse {
        ConnectionReuse::KeepAlive => Arc::new(template.clone()),
        // `connection: close` lets the server close first, so TIME_WAIT and its ports are not the
        // client's.
        ConnectionReuse::Fresh => Arc::new(template.clone().with_close()),
    };
    let mut running = JoinSet::new();
    for _ in 0..callers {
        running.spawn(run_caller(Arc::clone(&template), reuse, window));
    }
    let mut total = RequestTally::default();
    while let Some(done) = running.join_next().await {
        total.merge(&done.expect("a caller does not panic"));
    }
    total
}

async fn run_caller(
    template: Arc<RequestTemplate>,
    reuse: ConnectionReuse,
    window: MeasureWindow,
) -> RequestTally {
    let (mut tally, mut kept) = (RequestTally::default(), None);
    loop {
        let start = Instant::now();
        // Tested before a request and not after: the last one may end behind the window and is then
        // not counted.
        if start >= window.until {
            return tally;
        }
        let outcome = match reuse {
            ConnectionReuse::KeepAlive => call_keep_alive(&mut kept, &template).await,
            ConnectionReuse::Fresh => {
                connection::send_once(template.addr, template.build_request())
                    .await
                    .and_then(|a| a.require_success().map(drop))
            }
        };
        // Taken before the pause below, which is no part of a latency.
        let end = Instant::now();
        if outcome.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await; // no requests to a dead server at full speed
        }
        if window.contains_moment(end) {
            tally.record_outcome(outcome.map(|()| end - start));
        }
    }
}

async fn call_keep_alive(
    kept: &mut Option<LoadConnection>,
    template: &RequestTemplate,
) -> Result<(), RequestFailure> {
    let mut connection = match kept.take().filter(LoadConnection::is_open) {
        Some(connection) => connection,
        None => LoadConnection::open(template.addr).await?,
    };
    let answer = connection.send_request(template.build_request()).await?;
    // Kept only after a complete answer: a failed connection is dropped by the `?` above.
    *kept = Some(connection);
    answer.require_success().map(drop)
}
