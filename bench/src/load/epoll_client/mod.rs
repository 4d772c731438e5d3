//! A closed loop with minimal CPU cost: one thread, one epoll, requests as bytes, and of a response
//! only the necessary parts. The loads share the processors with the measured programs: the
//! client's cost reduces every rate.
//!
//! A caller sends the next request directly after its response. The report has the cost of the
//! client beside the counts.

mod connection;
mod event_loop;
mod response;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::closed::ConnectionReuse;
use super::{MeasureWindow, RequestTemplate};
use crate::tally::{RequestFailure, RequestTally};
use event_loop::CallerLoop;

/// A caller that makes requests in sequence.
pub(crate) trait LoadCaller: Send + 'static {
    /// Returns the next request, head and body.
    fn next_request(&mut self) -> &[u8];

    /// Handles the outcome: the body of a successful response, or the failure. Returns the outcome
    /// to count.
    fn handle_outcome(
        &mut self,
        outcome: Result<&[u8], RequestFailure>,
    ) -> Result<(), RequestFailure>;
}

/// Counts of a load, and its own CPU time.
#[derive(Debug)]
pub(crate) struct LoadResult {
    pub(crate) tally: RequestTally,
    /// CPU time of the client's thread within the window.
    pub(crate) own: Duration,
}

impl LoadResult {
    /// Returns the client's microseconds per response.
    pub(crate) fn own_us(&self) -> f64 {
        self.own.as_nanos() as f64 / 1e3 / self.tally.answered_count().max(1) as f64
    }
}

/// Runs callers that send the same request until the window ends. Each uses a keep-alive
/// connection, or a new one per request.
///
/// # Errors
/// When the client itself cannot run; outcomes of requests are in the tally.
pub(crate) async fn run(
    template: &RequestTemplate,
    callers: usize,
    reuse: ConnectionReuse,
    window: MeasureWindow,
) -> io::Result<LoadResult> {
    let bytes: Arc<[u8]> = match reuse {
        ConnectionReuse::KeepAlive => template.to_bytes().into(),
        ConnectionReuse::Fresh => template.clone().with_close().to_bytes().into(),
    };
    run_callers(
        template.addr,
        vec![SameRequest(bytes); callers],
        reuse,
        window,
    )
    .await
}

/// Runs callers with their own requests on keep-alive connections.
///
/// # Errors
/// When the client itself cannot run.
pub(crate) async fn run_each<C: LoadCaller>(
    addr: SocketAddr,
    callers: Vec<C>,
    window: MeasureWindow,
) -> io::Result<LoadResult> {
    run_callers(addr, callers, ConnectionReuse::KeepAlive, window).await
}

async fn run_callers<C: LoadCaller>(
    addr: SocketAddr,
    callers: Vec<C>,
    reuse: ConnectionReuse,
    window: MeasureWindow,
) -> io::Result<LoadResult> {
    let round = move || CallerLoop::new(addr, callers, reuse, window)?.run();
    tokio::task::spawn_blocking(round)
        .await
        .map_err(io::Error::other)?
}

/// A caller that always sends the same request.
#[derive(Clone)]
struct SameRequest(Arc<[u8]>);

impl LoadCaller for SameRequest {
    fn next_request(&mut self) -> &[u8] {
        &self.0
    }

    fn handle_outcome(
        &mut self,
        outcome: Result<&[u8], RequestFailure>,
    ) -> Result<(), RequestFailure> {
        outcome.map(drop)
    }
}

#[cfg(test)]
mod tests;
