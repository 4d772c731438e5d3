//! Tasks of a caller, and their answers: one line of JSON each.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, SocketAddrV4, ToSocketAddrs};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::compare::RoundSample;
use crate::load::MeasureWindow;
use crate::tally::RequestTally;

/// Microseconds of a day: lines of logs have the time of day.
const DAY_US: u128 = 24 * 60 * 60 * 1_000_000;

/// Calls to make, and the time in which they count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CallerTask {
    /// Time without counts, in milliseconds.
    warm_up_ms: u64,
    /// Time in which calls count, in milliseconds.
    length_ms: u64,
    /// Callee, as `NAME:PORT` or `ADDRESS:PORT`.
    to: String,
    pub(super) work: CallerWork,
}

/// Kinds of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CallerWork {
    /// Requests with a body of 100 bytes, over this number of kept connections.
    Http(usize),
    /// New TCP connections in sequence.
    Connect,
    /// Single bytes back and forth over one connection.
    RoundTrip,
    /// Megabytes to the callee over one connection.
    Bulk,
    /// Connection attempts that must fail with `EPERM`.
    Denied,
    /// Redis commands over this number of connections.
    Redis(RedisCommand, usize),
    /// One byte back and forth over a new connection; the times of the task do not matter.
    FirstByte,
    /// One `PING` of Redis over a new connection; the times of the task do not matter.
    FirstPing,
}

/// Commands of Redis with a value of 100 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RedisCommand {
    Get,
    Set,
}

/// Counts of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CallerAnswer {
    n: u64,
    failures: BTreeMap<String, u64>,
    pub(crate) p50_us: f64,
    p99_us: f64,
    /// Microseconds since midnight, UTC, when the last call had ended.
    pub(crate) ended_us: u64,
}

impl CallerTask {
    /// Creates a task whose calls go to `to`.
    pub(crate) fn new(to: &str, work: CallerWork, warm_up: Duration, length: Duration) -> Self {
        // Longer than any measurement: no task is ever cut short by it.
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            warm_up_ms: millis(warm_up),
            length_ms: millis(length),
            to: to.to_owned(),
            work,
        }
    }

    /// Starts the task's window now.
    pub(crate) fn start_window(&self) -> MeasureWindow {
        let millis = Duration::from_millis;
        MeasureWindow::starting_after(millis(self.warm_up_ms), millis(self.length_ms))
    }

    /// Returns the callee's IPv4 address. A name may have one of IPv6, too.
    pub(super) fn resolve_callee(&self) -> io::Result<SocketAddrV4> {
        // The resolver of the C library reads /etc/hosts, as functions do.
        let mut found = self.to.to_socket_addrs()?.filter_map(|addr| match addr {
            SocketAddr::V4(addr) => Some(addr),
            // Both stand for the same function; the plain networks have no IPv6.
            SocketAddr::V6(_) => None,
        });
        found
            .next()
            .ok_or_else(|| io::Error::other(format!("{} has no IPv4 address", self.to)))
    }
}

impl CallerAnswer {
    /// Returns the answer of a task that has just ended.
    pub(super) fn from_tally(tally: &RequestTally) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        // A clock before 1970 gives a wrong time and no panic.
        let micros = now.unwrap_or_default().as_micros() % DAY_US;
        Self {
            n: tally.answered_count(),
            failures: tally.failures_by_kind().clone(),
            p50_us: tally.latency_us(0.5),
            p99_us: tally.latency_us(0.99),
            ended_us: u64::try_from(micros).unwrap_or_default(),
        }
    }

    /// Returns the number of calls that failed.
    pub(crate) fn failed_count(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Returns the number of calls that had their result.
    pub(crate) fn answered_count(&self) -> u64 {
        self.n
    }

    /// Returns the failures by kind.
    pub(crate) fn failures_by_kind(&self) -> &BTreeMap<String, u64> {
        &self.failures
    }

    /// Returns a sample of a window of this length, with the CPU time in it.
    pub(crate) fn to_sample(&self, length: Duration, cpu: Duration) -> RoundSample {
        RoundSample {
            n: self.n,
            failed: self.failed_count(),
            p50_us: self.p50_us,
            p99_us: self.p99_us,
            rps: self.n as f64 / length.as_secs_f64(),
            // max: a window without calls must not divide by zero
            cpu_us_per_request: cpu.as_nanos() as f64 / 1e3 / self.n.max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::RequestFailure;

    #[test]
    fn tasks_are_one_line() {
        let work = CallerWork::Redis(RedisCommand::Get, 32);
        let second = Duration::from_secs(1);
        let task = CallerTask::new("store:6379", work, second, 2 * second);
        let line = serde_json::to_string(&task).unwrap();
        assert!(!line.contains('\n'), "{line}");
        assert_eq!(serde_json::from_str::<CallerTask>(&line).unwrap(), task);
        assert_eq!(task.start_window().length(), 2 * second);
    }

    #[test]
    fn a_sample_counts_failures_apart() {
        let mut tally = RequestTally::default();
        tally.record_outcome(Ok(Duration::from_micros(10)));
        tally.record_outcome(Ok(Duration::from_micros(10)));
        tally.record_outcome(Err(RequestFailure::Connect));
        let answer = CallerAnswer::from_tally(&tally);
        let sample = answer.to_sample(Duration::from_secs(2), Duration::from_micros(6));
        assert_eq!((sample.n, sample.failed), (2, 1));
        assert_eq!((sample.rps, sample.cpu_us_per_request), (1.0, 3.0));
    }
}
