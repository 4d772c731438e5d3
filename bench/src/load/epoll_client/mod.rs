//! A closed loop that costs as little as a client can: one thread, one epoll, requests that are
//! bytes already, of an answer only what has to be known. For loads that share the processors with
//! what they measure: what the client costs is missing from every rate.
//!
//! A caller that has its response sends the next request at once, on the same turn. The cost of the
//! client itself is reported beside the counts.

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

/// Caller that makes a request after another.
pub(crate) trait LoadCaller: Send + 'static {
    /// The next request, head and body.
    fn next_request(&mut self) -> &[u8];

    /// Handles the outcome: the body of a successful answer, or the failure. Returns how it counts.
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
    /// Microseconds by request answered.
    pub(crate) fn own_us(&self) -> f64 {
        self.own.as_nanos() as f64 / 1e3 / self.tally.answered_count().max(1) as f64
    }
}

/// Callers that all ask the same until the window ends, each on a connection that it keeps or on a
/// new one each time.
///
/// # Errors
/// When the client itself cannot run; what happens to a request is in the tally.
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
    run_each(template.addr, vec![SameRequest(bytes); callers], window).await
}

/// The same with callers that have something of their own to ask.
///
/// # Errors
/// As above.
pub(crate) async fn run_each<C: LoadCaller>(
    addr: SocketAddr,
    callers: Vec<C>,
    window: MeasureWindow,
) -> io::Result<LoadResult> {
    let round = move || CallerLoop::new(addr, callers, window)?.run();
    tokio::task::spawn_blocking(round)
        .await
        .map_err(io::Error::other)?
}

/// Asks the same each time.
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
