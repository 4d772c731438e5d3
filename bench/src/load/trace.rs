//! Requests at the times of a trace, in sequence.
//!
//! Latency counts from the due time of a request. If only the generator's sleep was too long,
//! latency counts from the send time: tokio's timer has a resolution of 1 ms. A request delayed by
//! its predecessor's response counts from its due time.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::tally::{RequestFailure, RequestTally};

/// Sends a request at each of `moments` since now, which ascend. `send` gets the number of the
/// moment. After each response `rest` gets the time until the next moment, and may use it.
pub(crate) async fn run_trace(
    moments: &[Duration],
    mut send: impl AsyncFnMut(usize) -> Result<(), RequestFailure>,
    mut rest: impl AsyncFnMut(Duration),
) -> RequestTally {
    let (start, mut tally) = (Instant::now(), RequestTally::default());
    for (number, moment) in moments.iter().enumerate() {
        let due = start + *moment;
        let ahead = Instant::now() < due;
        sleep_until(due).await;
        let from = if ahead { Instant::now() } else { due };
        let outcome = send(number).await;
        tally.record_outcome(outcome.map(|()| from.elapsed()));
        if let Some(next) = moments.get(number + 1) {
            rest((start + *next).saturating_duration_since(Instant::now())).await;
        }
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_moment_sends_a_request_and_rest_runs_between() {
        let moments = [0, 1, 1].map(Duration::from_millis);
        let (mut sent, mut rests) = (Vec::new(), 0);
        let send = async |number| {
            sent.push(number);
            if number == 1 {
                Err(RequestFailure::Broken)
            } else {
                Ok(())
            }
        };
        let tally = run_trace(&moments, send, async |_| rests += 1).await;
        assert_eq!(
            (tally.answered_count(), tally.failed_count(), rests),
            (2, 1, 2)
        );
        assert_eq!(sent, [0, 1, 2]);
    }

    #[tokio::test]
    async fn a_request_delayed_by_its_predecessor_counts_from_its_due_time() {
        let moments = [Duration::ZERO; 2];
        let send = async |number| {
            if number == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        };
        let tally = run_trace(&moments, send, async |_| {}).await;
        assert!(
            tally.latency_us(0.0) >= 19e3,
            "the second waited for the first: {tally:?}"
        );
    }
}
