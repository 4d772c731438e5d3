//! Calls, in sequence or concurrent, and their durations.
//!
//! Time between two calls on new connections (session tickets, close) is in no latency, but in the
//! CPU time: it belongs to the connection.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::RemoteTransport;
use super::call::RemoteCall;
use super::caller::{CallConnection, CalleeAddress, RemoteCaller, SizedCall};
use crate::compare::{LoadSample, RoundSample};
use crate::tally::{RequestFailure, RequestTally};

/// Length of a measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallPlan {
    pub(crate) duration: Duration,
    /// Minimum number of calls, in any time.
    pub(crate) least: u64,
}

/// Latencies, failures, and CPU time of the caller's thread and the worker's process.
#[derive(Debug, Default)]
pub(crate) struct CallTimes {
    pub(crate) tally: RequestTally,
    /// Time with calls in flight.
    pub(crate) time: Duration,
    pub(crate) caller: Duration,
    pub(crate) worker: Duration,
}

impl CallTimes {
    /// Returns the CPU time of the caller, in microseconds per call.
    pub(crate) fn caller_us(&self) -> f64 {
        self.per_call(self.caller)
    }

    fn per_call(&self, time: Duration) -> f64 {
        time.as_nanos() as f64 / 1e3 / self.tally.answered_count().max(1) as f64
    }

    /// Converts the times to a sample with the CPU time of both sides.
    pub(crate) fn to_sample(&self) -> LoadSample {
        let sample = RoundSample {
            n: self.tally.answered_count(),
            failed: self.tally.failed_count(),
            p50_us: self.tally.latency_us(0.5),
            p99_us: self.tally.latency_us(0.99),
            rps: self.tally.answered_count() as f64 / self.time.as_secs_f64().max(1e-9),
            cpu_us_per_request: self.per_call(self.caller + self.worker),
        };
        LoadSample::with_client(sample, self.caller_us())
    }

    fn record_outcome(&mut self, outcome: Result<Duration, RequestFailure>) {
        // Sum of the latencies: what lies between two calls is not theirs.
        self.time += outcome.as_ref().copied().unwrap_or_default();
        self.tally.record_outcome(outcome);
    }
}

/// Returns the CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// Makes each call on a new connection.
pub(crate) async fn call_fresh(
    caller: &RemoteCaller,
    (transport, callee): (RemoteTransport, &CalleeAddress),
    sized_call: &SizedCall,
    plan: CallPlan,
    worker: impl Fn() -> Duration,
) -> CallTimes {
    let mut took = CallTimes::default();
    let of = (transport, callee);
    call_first(
        caller,
        of,
        async |to| to.make_call(sized_call).await,
        &mut CallTimes::default(),
    )
    .await; // what only the first one pays has a case of its own
    // After the first call: caches and lazily made state are warm.
    let (own_before, worker_before) = (thread_cpu(), worker());
    let begun = Instant::now();
    while begun.elapsed() < plan.duration
        // At least this many: at long delays the duration alone gives too few for a p99.
        || took.tally.answered_count() + took.tally.failed_count() < plan.least
    {
        call_first(
            caller,
            of,
            async |to| to.make_call(sized_call).await,
            &mut took,
        )
        .await;
    }
    (took.caller, took.worker) = (thread_cpu() - own_before, worker() - worker_before);
    took
}

/// Makes each of `calls` on a new connection. The first one is not counted.
pub(crate) async fn call_each(
    caller: &RemoteCaller,
    (transport, callee): (RemoteTransport, &CalleeAddress),
    calls: &[RemoteCall],
    worker: impl Fn() -> Duration,
) -> CallTimes {
    let (mut took, of) = (CallTimes::default(), (transport, callee));
    let Some((before, calls)) = calls.split_first() else {
        return took;
    };
    call_first(
        caller,
        of,
        async |to| make_call(to, before, transport).await,
        &mut CallTimes::default(),
    )
    .await;
    let (own_before, worker_before) = (thread_cpu(), worker());
    for call in calls {
        call_first(
            caller,
            of,
            async |to| make_call(to, call, transport).await,
            &mut took,
        )
        .await;
    }
    (took.caller, took.worker) = (thread_cpu() - own_before, worker() - worker_before);
    took
}

/// Makes all of `calls` on one connection, opened before the first. That call is not counted.
pub(crate) async fn call_on_one(
    caller: &RemoteCaller,
    (transport, callee): (RemoteTransport, &CalleeAddress),
    calls: &[RemoteCall],
    worker: impl Fn() -> Duration,
) -> CallTimes {
    let mut took = CallTimes::default();
    let Some((before, calls)) = calls.split_first() else {
        return took;
    };
    let mut connection = match caller.open_connection(transport, callee).await {
        Ok(connection) => connection,
        Err(failure) => {
            took.record_outcome(Err(failure));
            return took;
        }
    };
    let _ = make_call(&mut connection, before, transport).await; // a failure shows again
    let (own_before, worker_before) = (thread_cpu(), worker());
    for call in calls {
        let begun = Instant::now();
        took.record_outcome(
            make_call(&mut connection, call, transport)
                .await
                .map(|()| begun.elapsed()),
        );
    }
    (took.caller, took.worker) = (thread_cpu() - own_before, worker() - worker_before);
    took
}

async fn make_call(
    connection: &mut CallConnection,
    call: &RemoteCall,
    transport: RemoteTransport,
) -> Result<(), RequestFailure> {
    call.check_response(
        &connection
            .request_whole(call.build_request(transport))
            .await?,
    )
}

/// Runs `errand` on a new connection.
pub(crate) async fn call_first(
    caller: &RemoteCaller,
    (transport, callee): (RemoteTransport, &CalleeAddress),
    errand: impl AsyncFnOnce(&mut CallConnection) -> Result<(), RequestFailure>,
    took: &mut CallTimes,
) {
    let ready = match transport {
        // Opened before the clock starts: that is the variant.
        RemoteTransport::QuicReady => Some(caller.open_connection(transport, callee).await),
        _ => None,
    };
    let begun = Instant::now();
    let opened = match ready {
        Some(ready) => ready,
        None => caller.open_connection(transport, callee).await,
    };
    match opened {
        Ok(mut connection) => {
            let outcome = errand(&mut connection).await.map(|()| begun.elapsed());
            // Also checks that the early data was taken: a call that was repeated is no 0-RTT call.
            let ended = connection.close_gracefully().await;
            took.record_outcome(outcome.and_then(|time| ended.map(|()| time)));
        }
        Err(failure) => took.record_outcome(Err(failure)),
    }
}

/// Measures calls on open connections: one with this concurrency if the transport multiplexes, else
/// this number of connections.
pub(crate) async fn call_keep_alive(
    caller: &RemoteCaller,
    (transport, callee): (RemoteTransport, &CalleeAddress),
    (sized_call, at_a_time): (&SizedCall, usize),
    plan: CallPlan,
    worker: impl Fn() -> Duration,
) -> CallTimes {
    let mut took = CallTimes::default();
    let mut connections = match open_connections(caller, (transport, callee), at_a_time).await {
        Ok(connections) => connections,
        Err(failure) => {
            took.record_outcome(Err(failure));
            return took;
        }
    };
    for connection in &mut connections {
        let _ = connection.make_call(sized_call).await; // windows and paths are no news afterwards; a failure shows again
    }
    let (own_before, worker_before) = (thread_cpu(), worker());
    let begun = Instant::now();
    let mut running = JoinSet::new();
    for connection in connections {
        running.spawn_local(repeat_calls(
            connection,
            sized_call.clone(),
            plan,
            at_a_time,
        ));
    }
    while let Some(done) = running.join_next().await {
        took.tally.merge(&done.expect("a caller does not panic"));
    }
    took.time = begun.elapsed();
    (took.caller, took.worker) = (thread_cpu() - own_before, worker() - worker_before);
    took
}

async fn open_connections(
    caller: &RemoteCaller,
    of: (RemoteTransport, &CalleeAddress),
    at_a_time: usize,
) -> Result<Vec<CallConnection>, RequestFailure> {
    let mut connections = vec![caller.open_connection(of.0, of.1).await?];
    while connections.len() < at_a_time {
        let another = connections[0].clone_handle();
        connections.push(match another {
            Some(another) => another,
            None => caller.open_connection(of.0, of.1).await?,
        });
    }
    Ok(connections)
}

async fn repeat_calls(
    mut connection: CallConnection,
    sized_call: SizedCall,
    plan: CallPlan,
    at_a_time: usize,
) -> RequestTally {
    let (mut tally, begun) = (RequestTally::default(), Instant::now());
    // The minimum is of all callers together.
    let least = plan.least.div_ceil(at_a_time as u64);
    while begun.elapsed() < plan.duration || tally.answered_count() + tally.failed_count() < least {
        let started = Instant::now();
        tally.record_outcome(
            connection
                .make_call(&sized_call)
                .await
                .map(|()| started.elapsed()),
        );
    }
    tally
}
