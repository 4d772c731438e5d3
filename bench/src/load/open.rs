//! The open loop: requests start when they are due, whatever became of the earlier ones.
//!
//! Latency counts from the moment at which a request *should* have been sent. So a stall of the server, or of this program,
//! is part of every latency that it delayed ("coordinated omission" is leaving that out).

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Template;
use super::closed::Reuse;
use super::connection::{self, Connection};
use super::pacer;
use super::schedule::Schedule;
use crate::tally::{Failure, Tally};

/// Requests under way at once. More are counted as failures of the generator: they are not silently left out.
pub(crate) const MOST_IN_FLIGHT: usize = 10_000;

/// What became of request `n`.
pub(crate) struct Done {
    /// When it should have been sent, since the start.
    pub(crate) intended: Duration,
    /// When it ended, since the start.
    pub(crate) ended: Duration,
    pub(crate) outcome: Result<(), Failure>,
}

impl Done {
    /// Its latency from the intended moment, or why it failed.
    pub(crate) fn latency(&self) -> Result<Duration, Failure> {
        self.outcome
            .clone()
            .map(|()| self.ended.saturating_sub(self.intended))
    }
}

/// Calls `begin` for every arrival at its time and gathers the results, in the order in which they end.
pub(crate) async fn drive<F, T>(
    schedule: Schedule,
    start: Instant,
    mut begin: impl FnMut(u64) -> F,
) -> io::Result<Vec<T>>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let mut arrivals = pacer::start(schedule, start.into_std())?;
    let (mut running, mut done) = (JoinSet::new(), Vec::new());
    while let Some(n) = arrivals.recv().await {
        running.spawn(begin(n));
        while let Some(result) = running.try_join_next() {
            done.push(result.expect("a request does not panic"));
        }
    }
    done.extend(running.join_all().await);
    Ok(done)
}

/// Requests at the rate and for the length of `schedule`. Returns what became of each.
pub(crate) async fn run(
    template: &Template,
    schedule: Schedule,
    reuse: Reuse,
    start: Instant,
) -> io::Result<Vec<Done>> {
    let pool = Arc::new(Pool::new(template.clone(), reuse));
    let begin = |n| {
        let (pool, intended) = (Arc::clone(&pool), schedule.at(n));
        async move {
            let outcome = pool.send().await;
            Done {
                intended,
                ended: start.elapsed(),
                outcome,
            }
        }
    };
    drive(schedule, start, begin).await
}

/// Counts all of them.
pub(crate) fn tally(done: &[Done]) -> Tally {
    let mut tally = Tally::default();
    done.iter().for_each(|one| tally.add(one.latency()));
    tally
}

/// Idle connections, and the number of requests under way.
struct Pool {
    template: Template,
    reuse: Reuse,
    idle: Mutex<Vec<Connection>>,
    in_flight: Arc<()>,
}

impl Pool {
    fn new(template: Template, reuse: Reuse) -> Self {
        let template = if reuse == Reuse::Fresh {
            template.closing()
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

    async fn send(&self) -> Result<(), Failure> {
        let mine = Arc::clone(&self.in_flight);
        if Arc::strong_count(&mine) > MOST_IN_FLIGHT {
            return Err(Failure::Generator);
        }
        if self.reuse == Reuse::Fresh {
            let answer = connection::once(self.template.addr, self.template.request()).await?;
            return answer.success().map(drop);
        }
        let mut connection = match self.take() {
            Some(connection) => connection,
            None => Connection::open(self.template.addr).await?,
        };
        let answer = connection.ask(self.template.request()).await?;
        self.idle().push(connection);
        answer.success().map(drop)
    }

    fn take(&self) -> Option<Connection> {
        let mut idle = self.idle();
        idle.retain(Connection::is_open);
        idle.pop()
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_counts_from_the_intended_moment() {
        let ms = Duration::from_millis;
        let done = Done {
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
    async fn arrivals_do_not_wait_for_answers() {
        let schedule = Schedule::new(1_000.0, Duration::from_millis(50));
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
            drive(schedule, Instant::now(), begin),
        );
        let mut all = all
            .await
            .expect("no arrival waits for an earlier one")
            .unwrap();
        all.sort();
        assert_eq!(all, (0..50).collect::<Vec<u64>>());
    }
}
