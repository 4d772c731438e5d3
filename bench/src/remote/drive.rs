//! Calls, one after another or some at a time, and what they took.
//!
//! What lies between two calls on new connections (waiting for what follows a handshake, closing) is in no latency, but in the CPU time:
//! it belongs to the connection.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Way;
use super::call::Call;
use super::caller::{Ask, Callee, Caller, Connection};
use crate::compare::{Measured, Sample};
use crate::tally::{Failure, Tally};

/// How long a measurement is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) duration: Duration,
    /// Calls that are made at least, however long they take.
    pub(crate) least: u64,
}

/// What was counted. CPU time is the caller's thread and the worker's process.
#[derive(Debug, Default)]
pub(crate) struct Took {
    pub(crate) tally: Tally,
    /// In which calls were under way.
    pub(crate) time: Duration,
    pub(crate) caller: Duration,
    pub(crate) worker: Duration,
}

impl Took {
    /// CPU time of the caller, in microseconds a call.
    pub(crate) fn caller_us(&self) -> f64 {
        self.a_call(self.caller)
    }

    fn a_call(&self, time: Duration) -> f64 {
        time.as_nanos() as f64 / 1e3 / self.tally.answered().max(1) as f64
    }

    /// As a comparison has it: CPU time is that of both sides.
    pub(crate) fn measured(&self) -> Measured {
        let sample = Sample {
            n: self.tally.answered(),
            failed: self.tally.failed(),
            p50_us: self.tally.us(0.5),
            p99_us: self.tally.us(0.99),
            rps: self.tally.answered() as f64 / self.time.as_secs_f64().max(1e-9),
            cpu_us_per_request: self.a_call(self.caller + self.worker),
        };
        Measured::with_client(sample, self.caller_us())
    }

    fn add(&mut self, outcome: Result<Duration, Failure>) {
        self.time += outcome.as_ref().copied().unwrap_or_default();
        self.tally.add(outcome);
    }
}

/// CPU time of the calling thread.
pub(crate) fn own() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// A new connection for every call.
pub(crate) async fn fresh(
    caller: &Caller,
    (way, callee): (Way, &Callee),
    ask: &Ask,
    plan: Plan,
    worker: impl Fn() -> Duration,
) -> Took {
    let mut took = Took::default();
    let of = (way, callee);
    first(
        caller,
        of,
        async |to| to.ask(ask).await,
        &mut Took::default(),
    )
    .await; // what only the first one pays has a case of its own
    let (own_before, worker_before) = (own(), worker());
    let begun = Instant::now();
    while begun.elapsed() < plan.duration
        || took.tally.answered() + took.tally.failed() < plan.least
    {
        first(caller, of, async |to| to.ask(ask).await, &mut took).await;
    }
    (took.caller, took.worker) = (own() - own_before, worker() - worker_before);
    took
}

/// Each of `calls` on a new connection. The first one is not counted.
pub(crate) async fn each(
    caller: &Caller,
    (way, callee): (Way, &Callee),
    calls: &[Call],
    worker: impl Fn() -> Duration,
) -> Took {
    let (mut took, of) = (Took::default(), (way, callee));
    let Some((before, calls)) = calls.split_first() else {
        return took;
    };
    first(
        caller,
        of,
        async |to| made(to, before, way).await,
        &mut Took::default(),
    )
    .await;
    let (own_before, worker_before) = (own(), worker());
    for call in calls {
        first(caller, of, async |to| made(to, call, way).await, &mut took).await;
    }
    (took.caller, took.worker) = (own() - own_before, worker() - worker_before);
    took
}

/// All of `calls` on one connection, which is open when the first one begins. That one is not counted.
pub(crate) async fn on_one(
    caller: &Caller,
    (way, callee): (Way, &Callee),
    calls: &[Call],
    worker: impl Fn() -> Duration,
) -> Took {
    let mut took = Took::default();
    let Some((before, calls)) = calls.split_first() else {
        return took;
    };
    let mut connection = match caller.open(way, callee).await {
        Ok(connection) => connection,
        Err(failure) => {
            took.add(Err(failure));
            return took;
        }
    };
    let _ = made(&mut connection, before, way).await; // a failure shows again
    let (own_before, worker_before) = (own(), worker());
    for call in calls {
        let begun = Instant::now();
        took.add(
            made(&mut connection, call, way)
                .await
                .map(|()| begun.elapsed()),
        );
    }
    (took.caller, took.worker) = (own() - own_before, worker() - worker_before);
    took
}

async fn made(connection: &mut Connection, call: &Call, way: Way) -> Result<(), Failure> {
    call.check(&connection.whole(call.request(way)).await?)
}

/// One `errand` on a new connection.
pub(crate) async fn first(
    caller: &Caller,
    (way, callee): (Way, &Callee),
    errand: impl AsyncFnOnce(&mut Connection) -> Result<(), Failure>,
    took: &mut Took,
) {
    let ready = match way {
        Way::QuicReady => Some(caller.open(way, callee).await),
        _ => None,
    };
    let begun = Instant::now();
    let opened = match ready {
        Some(ready) => ready,
        None => caller.open(way, callee).await,
    };
    match opened {
        Ok(mut connection) => {
            let outcome = errand(&mut connection).await.map(|()| begun.elapsed());
            let ended = connection.end().await;
            took.add(outcome.and_then(|time| ended.map(|()| time)));
        }
        Err(failure) => took.add(Err(failure)),
    }
}

/// Connections that stay: one with so many calls at a time where the transport allows it, else so many.
pub(crate) async fn kept(
    caller: &Caller,
    (way, callee): (Way, &Callee),
    (ask, at_a_time): (&Ask, usize),
    plan: Plan,
    worker: impl Fn() -> Duration,
) -> Took {
    let mut took = Took::default();
    let mut connections = match open(caller, (way, callee), at_a_time).await {
        Ok(connections) => connections,
        Err(failure) => {
            took.add(Err(failure));
            return took;
        }
    };
    for connection in &mut connections {
        let _ = connection.ask(ask).await; // windows and paths are no news afterwards; a failure shows again
    }
    let (own_before, worker_before) = (own(), worker());
    let begun = Instant::now();
    let mut running = JoinSet::new();
    for connection in connections {
        running.spawn_local(again(connection, ask.clone(), plan, at_a_time));
    }
    while let Some(done) = running.join_next().await {
        took.tally.merge(&done.expect("a caller does not panic"));
    }
    took.time = begun.elapsed();
    (took.caller, took.worker) = (own() - own_before, worker() - worker_before);
    took
}

async fn open(
    caller: &Caller,
    of: (Way, &Callee),
    at_a_time: usize,
) -> Result<Vec<Connection>, Failure> {
    let mut connections = vec![caller.open(of.0, of.1).await?];
    while connections.len() < at_a_time {
        let another = connections[0].another();
        connections.push(match another {
            Some(another) => another,
            None => caller.open(of.0, of.1).await?,
        });
    }
    Ok(connections)
}

async fn again(mut connection: Connection, ask: Ask, plan: Plan, at_a_time: usize) -> Tally {
    let (mut tally, begun) = (Tally::default(), Instant::now());
    let least = plan.least.div_ceil(at_a_time as u64);
    while begun.elapsed() < plan.duration || tally.answered() + tally.failed() < least {
        let asked = Instant::now();
        tally.add(connection.ask(&ask).await.map(|()| asked.elapsed()));
    }
    tally
}
