//! Number of warm connections worth keeping for one key.
//!
//! Clients that arrive within one connect time cannot wait for connections of their own. So that
//! many must be open before. The demand is the largest number of clients within one connect time,
//! lately. It grows at once and expires after a time without use.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Added to the connect time for the node's scheduling.
const SLACK_DELAY: Duration = Duration::from_millis(5);
/// Weight of a new measurement: one part in this many, an exponential average as in RFC 6298.
const SMOOTHING_DIVISOR: u32 = 8;

/// Demand for connections of one key.
#[derive(Debug)]
pub(super) struct KeyDemand {
    /// Maximum that is ever wanted.
    max: u32,
    /// Times of the last requests, at most `max` of them.
    recent_requests: VecDeque<Instant>,
    /// Time that a connect takes, smoothed.
    connect_time: Duration,
    /// Most concurrent clients in this window and in the one before.
    peaks: [u32; 2],
    /// Half of the time after which demand expires.
    window_length: Duration,
    /// End of this window.
    window_end: Instant,
    expected_clients: ExpectedClients,
}

/// Announced clients.
#[derive(Debug)]
struct ExpectedClients {
    clients: u32,
    until: Instant,
}

impl KeyDemand {
    /// Creates an empty demand that expires after `idle` without requests and never exceeds `max`.
    pub(super) fn new(now: Instant, max: u32, idle: Duration) -> Self {
        let expected_clients = ExpectedClients {
            clients: 0,
            until: now,
        };
        let window_length = idle / 2;
        Self {
            max,
            recent_requests: VecDeque::new(),
            connect_time: Duration::ZERO,
            peaks: [0; 2],
            window_length,
            window_end: now + window_length,
            expected_clients,
        }
    }

    /// Records a request.
    pub(super) fn record_request(&mut self, now: Instant) {
        self.roll_window(now);
        // The replacement of a taken connection is open one connect time later. The factor of two
        // is a margin.
        let span = self.connect_time * 2 + SLACK_DELAY;
        while self
            .recent_requests
            .front()
            .is_some_and(|came| now.duration_since(*came) >= span)
        {
            self.recent_requests.pop_front();
        }
        if self.recent_requests.len() < self.max as usize {
            self.recent_requests.push_back(now);
        }
        self.peaks[0] = self.peaks[0].max(self.recent_requests.len() as u32);
        // An announced client has arrived.
        self.expected_clients.clients = self.expected_clients.clients.saturating_sub(1);
    }

    /// Announces clients that will come soon.
    pub(super) fn expect_clients(&mut self, now: Instant, clients: u32) {
        self.roll_window(now);
        let until = now + self.window_length * 2;
        self.expected_clients = ExpectedClients {
            clients: clients.max(self.expected_clients.clients),
            until,
        };
    }

    /// Records the time that a connect took.
    pub(super) fn record_connect_time(&mut self, time: Duration) {
        self.connect_time = match self.connect_time {
            // The first measurement counts in full.
            Duration::ZERO => time,
            takes => (takes * (SMOOTHING_DIVISOR - 1) + time) / SMOOTHING_DIVISOR,
        };
    }

    /// Returns the number of connections worth keeping warm.
    pub(super) fn wanted_warm(&mut self, now: Instant) -> u32 {
        self.roll_window(now);
        self.peaks[0]
            .max(self.peaks[1])
            .max(self.expected_clients.clients)
            .min(self.max)
    }

    /// Replaces the maximum. Earlier demand above it is cut when it is read.
    pub(super) fn set_max(&mut self, max: u32) {
        self.max = max;
    }

    /// Stops keeping connections warm.
    pub(super) fn stop(&mut self) {
        self.max = 0;
    }

    fn roll_window(&mut self, now: Instant) {
        if now >= self.expected_clients.until {
            self.expected_clients.clients = 0;
        }
        if now < self.window_end {
            return;
        }
        // After a whole window without a call the previous peak is outdated, too.
        let missed = now >= self.window_end + self.window_length;
        self.peaks = [0, if missed { 0 } else { self.peaks[0] }];
        self.window_end = now + self.window_length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(60);
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn requests_within_one_connect_time_raise_the_demand() {
        let (mut now, mut demand) = (Instant::now(), KeyDemand::new(Instant::now(), 8, IDLE));
        assert_eq!(demand.wanted_warm(now), 0, "without use nothing is kept");
        demand.record_request(now);
        assert_eq!(demand.wanted_warm(now), 1);
        for _ in 0..4 {
            now += 100 * MS;
            demand.record_request(now);
        }
        assert_eq!(demand.wanted_warm(now), 1, "one after the other needs one");
        (0..100).for_each(|_| demand.record_request(now));
        assert_eq!(demand.wanted_warm(now), 8, "never more than the maximum");
        assert_eq!(demand.recent_requests.len(), 8, "nor more remembered");
    }

    #[test]
    fn slow_destinations_need_more_connections() {
        let start = Instant::now();
        let [mut nearby, mut distant] = [MS, 50 * MS].map(|time| {
            let mut demand = KeyDemand::new(start, 100, IDLE);
            demand.record_connect_time(time);
            demand
        });
        for n in 0..1_000 {
            nearby.record_request(start + n * MS);
            distant.record_request(start + n * MS);
        }
        let now = start + 1_000 * MS;
        assert_eq!(
            (nearby.wanted_warm(now), distant.wanted_warm(now)),
            (7, 100)
        );
    }

    #[test]
    fn demand_without_requests_is_forgotten() {
        let start = Instant::now();
        let mut demand = KeyDemand::new(start, 8, IDLE);
        (0..5).for_each(|_| demand.record_request(start));
        assert_eq!(
            demand.wanted_warm(start + IDLE / 2),
            5,
            "for half of the time at least"
        );
        assert_eq!(demand.wanted_warm(start + IDLE), 0);
        (0..5).for_each(|_| demand.record_request(start + IDLE));
        assert_eq!(
            demand.wanted_warm(start + IDLE * 10),
            0,
            "also without a call meanwhile"
        );
    }

    #[test]
    fn expected_clients_count_until_they_come() {
        let start = Instant::now();
        let mut demand = KeyDemand::new(start, 8, IDLE);
        demand.expect_clients(start, 3);
        assert_eq!(demand.wanted_warm(start), 3);
        demand.record_request(start);
        demand.record_request(start + 20 * MS);
        demand.record_request(start + 40 * MS);
        assert_eq!(demand.wanted_warm(start + 40 * MS), 1, "all are there");
        demand.expect_clients(start, 5);
        assert_eq!(demand.wanted_warm(start + IDLE), 0, "no client came");
    }

    #[test]
    fn stopped_demand_wants_nothing() {
        let start = Instant::now();
        let mut demand = KeyDemand::new(start, 8, IDLE);
        demand.record_request(start);
        demand.stop();
        demand.expect_clients(start, 3);
        demand.record_request(start);
        assert_eq!(demand.wanted_warm(start), 0);
    }
}
