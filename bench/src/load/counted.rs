//! A known number of requests, so many at a time.

use std::cell::Cell;

use super::Template;
use super::connection::Connection;
use crate::tally::{Failure, Tally};

/// Makes `total` requests over `callers` kept connections.
pub(crate) async fn run(template: &Template, callers: usize, total: u64) -> Tally {
    let left = Cell::new(total);
    let one = async || {
        let mut tally = Tally::default();
        let mut connection = match Connection::open(template.addr).await {
            Ok(connection) => connection,
            Err(failure) => return [Err(failure)].into_iter().collect(),
        };
        while let Some(rest) = left.get().checked_sub(1) {
            left.set(rest);
            let since = tokio::time::Instant::now();
            let answer = connection
                .ask(template.request())
                .await
                .and_then(|answer| answer.success());
            let failed = answer.is_err();
            tally.add(answer.map(|_| since.elapsed()));
            if failed {
                break; // the connection may be broken; an audit of failures is worth nothing anyway
            }
        }
        tally
    };
    let mut all = Tally::default();
    futures_util::future::join_all((0..callers).map(|_| one()))
        .await
        .iter()
        .for_each(|tally| all.merge(tally));
    all
}

impl FromIterator<Result<std::time::Duration, Failure>> for Tally {
    fn from_iter<T: IntoIterator<Item = Result<std::time::Duration, Failure>>>(
        outcomes: T,
    ) -> Self {
        let mut tally = Self::default();
        outcomes.into_iter().for_each(|outcome| tally.add(outcome));
        tally
    }
}
