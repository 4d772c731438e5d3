//! Replicas with a start delay and a common queue, as a fluid: parts of requests are fine.

use std::collections::VecDeque;
use std::time::Duration;

/// Ticks of the model per second.
pub(super) const TICKS_PER_SECOND: u32 = 10;
/// CPU time of one request, in thousandths of a core and seconds.
pub(super) const CPU_MILLI_PER_REQUEST: f64 = 10.0;

/// A function: its replicas and its open requests.
#[derive(Debug, Clone)]
pub(super) struct FunctionModel {
    /// Requests that a replica serves per second at most.
    pub(super) replica_rate: f64,
    pub(super) start_delay: Duration,
    pub(super) now: Duration,
    pub(super) ready: u32,
    /// Times at which starting replicas become ready.
    pub(super) starting: VecDeque<Duration>,
    /// Requests that wait or are served.
    pub(super) open: f64,
    /// Requests that have arrived so far.
    pub(super) arrived: f64,
    /// Requests that were served in the last tick, each of which takes one.
    pub(super) served: f64,
}

impl FunctionModel {
    pub(super) fn new(replica_rate: f64, start_delay: Duration, ready: u32) -> Self {
        Self {
            replica_rate,
            start_delay,
            now: Duration::ZERO,
            ready,
            starting: VecDeque::new(),
            open: 0.0,
            arrived: 0.0,
            served: 0.0,
        }
    }

    /// Number of replicas that cost money.
    pub(super) fn replicas(&self) -> u32 {
        self.ready + self.starting.len() as u32
    }

    /// Starts or stops replicas. Those that start are stopped first.
    pub(super) fn scale_to(&mut self, desired: u32) {
        while self.replicas() < desired {
            self.starting.push_back(self.now + self.start_delay);
        }
        while self.replicas() > desired {
            if self.starting.pop_back().is_none() {
                self.ready -= 1;
            }
        }
    }

    /// Accepts the requests of one tick.
    pub(super) fn accept(&mut self, requests: f64) {
        self.open += requests;
        self.arrived += requests;
    }

    /// Serves requests for one tick.
    pub(super) fn serve(&mut self) {
        self.now += Duration::from_secs(1) / TICKS_PER_SECOND;
        while self.starting.front().is_some_and(|&at| at <= self.now) {
            self.starting.pop_front();
            self.ready += 1;
        }
        let capacity = f64::from(self.ready) * self.replica_rate / f64::from(TICKS_PER_SECOND);
        self.served = self.open.min(capacity);
        self.open -= self.served;
    }

    /// Requests that a client could see as open at the end of a tick: those that the tick served
    /// took all of it.
    pub(super) fn in_flight(&self) -> u64 {
        let requests = self.open + self.served;
        // A part of a request is one that is open for a part of the time.
        (requests.round() as u64).max(u64::from(requests > 0.0))
    }

    pub(super) fn cpu_milli(&self) -> u64 {
        (self.served * f64::from(TICKS_PER_SECOND) * CPU_MILLI_PER_REQUEST) as u64
    }
}
