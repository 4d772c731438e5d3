//! How many connections of one key are worth keeping open.
//!
//! Clients that come within the time that a connection takes to open cannot be served by ones opened for them: so many have to be there before. That number
//! is what is looked for: most clients within one such time, lately. It grows at once and is forgotten after a time without use.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Added to the time that a connection takes: the node does other things, too.
const SLACK_DELAY: Duration = Duration::from_millis(5);
/// A measured time counts for one part in so many.
const SMOOTHING_DIVISOR: u32 = 8;

/// The demand for connections of one key.
#[derive(Debug)]
pub(super) struct KeyDemand {
    /// More than so many are never wanted.
    max: u32,
    /// When the last clients came, no more of them than `most`.
    recent_requests: VecDeque<Instant>,
    /// How long a connection takes to open.
    connect_time: Duration,
    /// Most clients at a time, in this window and in the one before.
    peaks: [u32; 2],
    /// Half of the time after which use is forgotten.
    window_length: Duration,
    /// End of this window.
    window_end: Instant,
    expected_clients: ExpectedClients,
}

/// Clients that were announced.
#[derive(Debug)]
struct ExpectedClients {
    clients: u32,
    until: Instant,
}

impl KeyDemand {
    /// None yet. It is forgotten after `idle` without use; more than `most` are never wanted.
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

    /// A client came.
    pub(super) fn record_request(&mut self, now: Instant) {
        self.roll_window(now);
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
        self.expected_clients.clients = self.expected_clients.clients.saturating_sub(1);
    }

    /// So many clients will come soon.
    pub(super) fn expect_clients(&mut self, now: Instant, clients: u32) {
        self.roll_window(now);
        let until = now + self.window_length * 2;
        self.expected_clients = ExpectedClients {
            clients: clients.max(self.expected_clients.clients),
            until,
        };
    }

    /// A connection was opened in this time.
    pub(super) fn record_connect_time(&mut self, time: Duration) {
        self.connect_time = match self.connect_time {
            Duration::ZERO => time,
            takes => (takes * (SMOOTHING_DIVISOR - 1) + time) / SMOOTHING_DIVISOR,
        };
    }

    /// How many are worth having open for nobody yet.
    pub(super) fn wanted_warm(&mut self, now: Instant) -> u32 {
        self.roll_window(now);
        self.peaks[0]
            .max(self.peaks[1])
            .max(self.expected_clients.clients)
            .min(self.max)
    }

    /// Nothing is wanted any more.
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
        assert_eq!(demand.wanted_warm(now), 8, "never more than the most");
        assert_eq!(demand.recent_requests.len(), 8, "nor more remembered");
    }

    #[test]
    fn slow_destinations_need_more_connections() {
        let start = Instant::now();
        let [mut near, mut far] = [MS, 50 * MS].map(|time| {
            let mut demand = KeyDemand::new(start, 100, IDLE);
            demand.record_connect_time(time);
            demand
        });
        for n in 0..1_000 {
            near.record_request(start + n * MS);
            far.record_request(start + n * MS);
        }
        let now = start + 1_000 * MS;
        assert_eq!((near.wanted_warm(now), far.wanted_warm(now)), (7, 100));
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
            "also when nobody looked meanwhile"
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
        assert_eq!(demand.wanted_warm(start + IDLE), 0, "nobody came");
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
