//! A closed loop that costs as little as a client can: one thread, one epoll, requests that are bytes already, of an answer only what
//! has to be known. For loads that share the processors with what they measure: what the client costs is missing from every rate.
//!
//! [`line`](self::line) is a connection, [`answer`](self::answer) finds out where an answer ends, [`round`](self::round) goes from
//! one caller to the next. A caller that is answered asks again at once, on the same turn. What all of it cost is told beside what
//! was counted, so that nobody has to guess.

mod answer;
mod line;
mod round;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::closed::Reuse;
use super::{Template, Window};
use crate::tally::{Failure, Tally};
use round::Round;

/// One of those who ask, each one thing after another.
pub(crate) trait Caller: Send + 'static {
    /// The next request, head and body.
    fn request(&mut self) -> &[u8];

    /// What became of it: the body of an answer that says success, or what went wrong. Returns what it counts as.
    fn heard(&mut self, outcome: Result<&[u8], Failure>) -> Result<(), Failure>;
}

/// What a load counted, and what it cost itself.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) tally: Tally,
    /// CPU time of the client's thread within the window.
    pub(crate) own: Duration,
}

impl Loaded {
    /// Microseconds by request answered.
    pub(crate) fn own_us(&self) -> f64 {
        self.own.as_nanos() as f64 / 1e3 / self.tally.answered().max(1) as f64
    }
}

/// Callers that all ask the same until the window ends, each on a connection that it keeps or on a new one each time.
///
/// # Errors
/// When the client itself cannot run; what happens to a request is in the tally.
pub(crate) async fn run(
    template: &Template,
    callers: usize,
    reuse: Reuse,
    window: Window,
) -> io::Result<Loaded> {
    let bytes: Arc<[u8]> = match reuse {
        Reuse::KeepAlive => template.bytes().into(),
        Reuse::Fresh => template.clone().closing().bytes().into(),
    };
    run_each(template.addr, vec![Same(bytes); callers], window).await
}

/// The same with callers that have something of their own to ask.
///
/// # Errors
/// As above.
pub(crate) async fn run_each<C: Caller>(
    addr: SocketAddr,
    callers: Vec<C>,
    window: Window,
) -> io::Result<Loaded> {
    let round = move || Round::new(addr, callers, window)?.run();
    tokio::task::spawn_blocking(round)
        .await
        .map_err(io::Error::other)?
}

/// Asks the same each time.
#[derive(Clone)]
struct Same(Arc<[u8]>);

impl Caller for Same {
    fn request(&mut self) -> &[u8] {
        &self.0
    }

    fn heard(&mut self, outcome: Result<&[u8], Failure>) -> Result<(), Failure> {
        outcome.map(drop)
    }
}

#[cfg(test)]
mod tests;
