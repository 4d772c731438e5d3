//! A fixed number of requests with a fixed concurrency.

use std::cell::Cell;

use super::RequestTemplate;
use super::connection::LoadConnection;
use crate::tally::{RequestFailure, RequestTally};

/// Makes `total` requests over `callers` keep-alive connections.
pub(crate) async fn run_counted(
    template: &RequestTemplate,
    callers: usize,
    total: u64,
) -> RequestTally {
    // A `Cell` is enough: all callers are futures of one task.
    let left = Cell::new(total);
    let one = async || {
        let mut tally = RequestTally::default();
        let mut connection = match LoadConnection::open(template.addr).await {
            Ok(connection) => connection,
            Err(failure) => return [Err(failure)].into_iter().collect(),
        };
        while let Some(rest) = left.get().checked_sub(1) {
            // Taken before the await, or two callers would make the same last request.
            left.set(rest);
            let since = tokio::time::Instant::now();
            let answer = connection
                .send_request(template.build_request())
                .await
                .and_then(|answer| answer.require_success());
            let failed = answer.is_err();
            tally.record_outcome(answer.map(|_| since.elapsed()));
            if failed {
                break; // the connection may be broken; an audit of failures is worth nothing anyway
            }
        }
        tally
    };
    let mut all = RequestTally::default();
    futures_util::future::join_all((0..callers).map(|_| one()))
        .await
        .iter()
        .for_each(|tally| all.merge(tally));
    all
}

impl FromIterator<Result<std::time::Duration, RequestFailure>> for RequestTally {
    fn from_iter<T: IntoIterator<Item = Result<std::time::Duration, RequestFailure>>>(
        outcomes: T,
    ) -> Self {
        let mut tally = Self::default();
        outcomes
            .into_iter()
            .for_each(|outcome| tally.record_outcome(outcome));
        tally
    }
}
