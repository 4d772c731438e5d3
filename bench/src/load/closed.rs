//! The closed loop: a fixed number of callers, each waiting for its answer before it asks again.
//!
//! It shows capacity. It hides stalls: a server that stops for a second delays a handful of requests and not the hundreds
//! that would have come. Judge behaviour under stress with [`super::open`]. Comparisons use [`super::lean`], which costs less and
//! understands less.

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::connection::{self, Connection};
use super::{Template, Window};
use crate::tally::{Failure, Tally};

/// How the callers connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// One connection a caller, kept.
    KeepAlive,
    /// A new connection for every request.
    Fresh,
}

/// Runs `callers` callers until the window ends and counts what was answered in it.
pub(crate) async fn run(
    template: &Template,
    callers: usize,
    reuse: Reuse,
    window: Window,
) -> Tally {
    let template = match reuse {
        Reuse::KeepAlive => Arc::new(template.clone()),
        Reuse::Fresh => Arc::new(template.clone().closing()),
    };
    let mut running = JoinSet::new();
    for _ in 0..callers {
        running.spawn(caller(Arc::clone(&template), reuse, window));
    }
    let mut total = Tally::default();
    while let Some(done) = running.join_next().await {
        total.merge(&done.expect("a caller does not panic"));
    }
    total
}

async fn caller(template: Arc<Template>, reuse: Reuse, window: Window) -> Tally {
    let (mut tally, mut kept) = (Tally::default(), None);
    loop {
        let start = Instant::now();
        if start >= window.until {
            return tally;
        }
        let outcome = match reuse {
            Reuse::KeepAlive => on_kept(&mut kept, &template).await,
            Reuse::Fresh => connection::once(template.addr, template.request())
                .await
                .and_then(|a| a.success().map(drop)),
        };
        let end = Instant::now();
        if outcome.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await; // a dead server is not asked at full speed
        }
        if window.holds(end) {
            tally.add(outcome.map(|()| end - start));
        }
    }
}

async fn on_kept(kept: &mut Option<Connection>, template: &Template) -> Result<(), Failure> {
    let mut connection = match kept.take().filter(Connection::is_open) {
        Some(connection) => connection,
        None => Connection::open(template.addr).await?,
    };
    let answer = connection.ask(template.request()).await?;
    *kept = Some(connection);
    answer.success().map(drop)
}
