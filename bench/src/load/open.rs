//! The open loop: requests start when they are due, independent of earlier ones.
//!
//! Latency counts from the *intended* send time. A stall of the server or of this program is part
//! of every latency that it delayed. Omitting it is "coordinated omission".

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::RequestTemplate;
use super::closed::ConnectionReuse;
use super::connection::{self, LoadConnection};
use super::pacer;
use super::schedule::ArrivalSchedule;
use crate::tally::{RequestFailure, RequestTally};

/// Maximum of requests in flight. Further ones count as failures of the generator and are not
/// omitted silently.
pub(crate) const MAX_IN_FLIGHT: usize = 10_000;

/// Outcome of request `n`.
pub(crate) struct OpenLoopOutcome {
    /// Intended send time, since the start.
    pub(crate) intended: Duration,
    /// End of the request, since the start.
    pub(crate) ended: Duration,
    pub(crate) outcome: Result<(), RequestFailure>,
}

impl OpenLoopOutcome {
    /// Latency from the intended send time, or the failure.
    pub(crate) fn latency(&self) -> Result<Duration, RequestFailure> {
        self.outcome
            .clone()
            .map(|()| self.ended.saturating_sub(self.intended))
    }
}

/// Calls `begin` for every arrival at its time and collects the results in the order of completion.
pub(crate) async fn drive_schedule<F, T>(
    schedule: ArrivalSchedule,
    start: Instant,
    mut begin: impl FnMut(u64) -> F,
) -> io::Result<Vec<T>>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let mut arrivals = pacer::start_pacer(schedule, start.into_std())?;
    let (mut running, mut done) = (JoinSet::new(), Vec::new());
    // Finished tasks are collected while sending, so that memory is bounded by requests in flight.
    while let Some(n) = arrivals.recv().await {
        running.spawn(begin(n));
        // Never waits: a wait for an answer would turn the loop into a closed one.
        while let Some(result) = running.try_join_next() {
            // In the order of their ends: percentiles need no other.
            done.push(result.expect("a request does not panic"));
        }
    }
    done.extend(running.join_all().await);
    Ok(done)
}

/// Sends requests at the rate and for the length of `schedule`. Returns the outcome of each.
pub(crate) async fn run_open(
    template: &RequestTemplate,
    schedule: ArrivalSchedule,
    reuse: ConnectionReuse,
    start: Instant,
) -> io::Result<Vec<OpenLoopOutcome>> {
    let pool = Arc::new(LoadConnections::new(template.clone(), reuse));
    let begin = |n| {
        let (pool, intended) = (Arc::clone(&pool), schedule.arrival_time(n));
        async move {
            let outcome = pool.send_request().await;
            OpenLoopOutcome {
                intended,
                ended: start.elapsed(),
                outcome,
            }
        }
    };
    drive_schedule(schedule, start, begin).await
}

/// Counts the outcomes.
pub(crate) fn tally_outcomes(done: &[OpenLoopOutcome]) -> RequestTally {
    let mut tally = RequestTally::default();
    done.iter()
        .for_each(|one| tally.record_outcome(one.latency()));
    tally
}

/// Idle connections, and the number of requests in flight.
struct LoadConnections {
    template: RequestTemplate,
    reuse: ConnectionReuse,
    idle: Mutex<Vec<LoadConnection>>,
    in_flight: Arc<()>,
}

impl LoadConnections {
    fn new(template: RequestTemplate, reuse: ConnectionReuse) -> Self {
        let template = if reuse == ConnectionReuse::Fresh {
            template.with_close()
        } else {
            template
        };
        Self {
            template,
            reuse,
            idle: Mutex::default(),
            in_flight: Arc::default(),
        }
    }

    async fn send_request(&self) -> Result<(), RequestFailure> {
        let mine = Arc::clone(&self.in_flight);
        if Arc::strong_count(&mine) > MAX_IN_FLIGHT {
            return Err(RequestFailure::Generator);
        }
        if self.reuse == ConnectionReuse::Fresh {
            let answer =
                connection::send_once(self.template.addr, self.template.build_request()).await?;
            return answer.require_success().map(drop);
        }
        let mut connection = match self.take_idle() {
            Some(connection) => connection,
            None => LoadConnection::open(self.template.addr).await?,
        };
        let answer = connection
            .send_request(self.template.build_request())
            .await?;
        self.lock_idle().push(connection);
        answer.require_success().map(drop)
    }

    fn take_idle(&self) -> Option<LoadConnection> {
        let mut idle = self.lock_idle();
        idle.retain(LoadConnection::is_open);
        idle.pop()
    }

    fn lock_idle(&self) -> std::sync::MutexGuard<'_, Vec<LoadConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_counts_from_the_intended_send_time() {
        let ms = Duration::from_millis;
        let done = OpenLoopOutcome {
            intended: ms(100),
            ended: ms(1_200),
            outcome: Ok(()),
        };
        assert_eq!(
            done.latency(),
            Ok(ms(1_100)),
            "sent a second late, answered in 100 ms: the caller waited for both"
        );
    }

    #[tokio::test]
    async fn arrivals_do_not_wait_for_responses() {
        let schedule = ArrivalSchedule::new(1_000.0, Duration::from_millis(50));
        let gate = Arc::new(tokio::sync::Barrier::new(50)); // opens when all fifty are under way at once
        let begin = |n| {
            let gate = Arc::clone(&gate);
            async move {
                gate.wait().await;
                n
            }
        };
        let all = tokio::time::timeout(
            Duration::from_secs(30),
            drive_schedule(schedule, Instant::now(), begin),
        );
        let mut all = all
            .await
            .expect("no arrival waits for an earlier one")
            .unwrap();
        all.sort();
        assert_eq!(all, (0..50).collect::<Vec<u64>>());
    }
}
