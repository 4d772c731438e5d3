//! Requests at the moments of a trace, one after the other.
//!
//! Latency counts from when a request was due, or from when it was sent if the generator only slept
//! too long: tokio's timer has milliseconds. A request that is late because the one before it is
//! not answered yet counts from when it was due.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::tally::{RequestFailure, RequestTally};

/// Asks at each of `moments` since now, which ascend. `ask` gets the number of the moment. After
/// each answer `rest` gets the time until the next moment, and may use it.
pub(crate) async fn run_trace(
    moments: &[Duration],
    mut ask: impl AsyncFnMut(usize) -> Result<(), RequestFailure>,
    mut rest: impl AsyncFnMut(Duration),
) -> RequestTally {
    let (start, mut tally) = (Instant::now(), RequestTally::default());
    for (number, moment) in moments.iter().enumerate() {
        let due = start + *moment;
        let ahead = Instant::now() < due;
        sleep_until(due).await;
        let from = if ahead { Instant::now() } else { due };
        let outcome = ask(number).await;
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
    async fn every_moment_is_asked_and_between_two_is_rest() {
        let moments = [0, 1, 1].map(Duration::from_millis);
        let (mut asked, mut rests) = (Vec::new(), 0);
        let ask = async |number| {
            asked.push(number);
            if number == 1 {
                Err(RequestFailure::Broken)
            } else {
                Ok(())
            }
        };
        let tally = run_trace(&moments, ask, async |_| rests += 1).await;
        assert_eq!(
            (tally.answered_count(), tally.failed_count(), rests),
            (2, 1, 2)
        );
        assert_eq!(asked, [0, 1, 2]);
    }

    #[tokio::test]
    async fn who_is_late_because_of_the_one_before_counts_from_when_it_was_due() {
        let moments = [Duration::ZERO; 2];
        let ask = async |number| {
            if number == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        };
        let tally = run_trace(&moments, ask, async |_| {}).await;
        assert!(
            tally.latency_us(0.0) >= 19e3,
            "the second waited for the first: {tally:?}"
        );
    }
}
