//! How many connections of one key are worth keeping open.
//!
//! Clients that come within the time that a connection takes to open cannot be served by ones opened for them: so many have to be there before. That number
//! is what is looked for: most clients within one such time, lately. It grows at once and is forgotten after a time without use.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Added to the time that a connection takes: the node does other things, too.
const SLACK: Duration = Duration::from_millis(5);
/// A measured time counts for one part in so many.
const PART: u32 = 8;

/// The demand for connections of one key.
#[derive(Debug)]
pub(super) struct Demand {
    /// More than so many are never wanted.
    most: u32,
    /// When the last clients came, no more of them than `most`.
    lately: VecDeque<Instant>,
    /// How long a connection takes to open.
    takes: Duration,
    /// Most clients at a time, in this window and in the one before.
    peaks: [u32; 2],
    /// Half of the time after which use is forgotten.
    window: Duration,
    /// End of this window.
    until: Instant,
    expected: Expected,
}

/// Clients that were announced.
#[derive(Debug)]
struct Expected {
    clients: u32,
    until: Instant,
}

impl Demand {
    /// None yet. It is forgotten after `idle` without use; more than `most` are never wanted.
    pub(super) fn new(now: Instant, most: u32, idle: Duration) -> Self {
        let expected = Expected { clients: 0, until: now };
        let window = idle / 2;
        Self {
            most,
            lately: VecDeque::new(),
            takes: Duration::ZERO,
            peaks: [0; 2],
            window,
            until: now + window,
            expected,
        }
    }

    /// A client came.
    pub(super) fn asked(&mut self, now: Instant) {
        self.roll(now);
        let span = self.takes * 2 + SLACK;
        while self.lately.front().is_some_and(|came| now.duration_since(*came) >= span) {
            self.lately.pop_front();
        }
        if self.lately.len() < self.most as usize {
            self.lately.push_back(now);
        }
        self.peaks[0] = self.peaks[0].max(self.lately.len() as u32);
        self.expected.clients = self.expected.clients.saturating_sub(1);
    }

    /// So many clients will come soon.
    pub(super) fn expects(&mut self, now: Instant, clients: u32) {
        self.roll(now);
        let until = now + self.window * 2;
        self.expected = Expected { clients: clients.max(self.expected.clients), until };
    }

    /// A connection was opened in this time.
    pub(super) fn took(&mut self, time: Duration) {
        self.takes = match self.takes {
            Duration::ZERO => time,
            takes => (takes * (PART - 1) + time) / PART,
        };
    }

    /// How many are worth having open for nobody yet.
    pub(super) fn wanted(&mut self, now: Instant) -> u32 {
        self.roll(now);
        self.peaks[0].max(self.peaks[1]).max(self.expected.clients).min(self.most)
    }

    /// Nothing is wanted any more.
    pub(super) fn stop(&mut self) {
        self.most = 0;
    }

    fn roll(&mut self, now: Instant) {
        if now >= self.expected.until {
            self.expected.clients = 0;
        }
        if now < self.until {
            return;
        }
        let missed = now >= self.until + self.window;
        self.peaks = [0, if missed { 0 } else { self.peaks[0] }];
        self.until = now + self.window;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(60);
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn clients_within_the_time_of_a_connection_are_wanted_at_once() {
        let (mut now, mut demand) = (Instant::now(), Demand::new(Instant::now(), 8, IDLE));
        assert_eq!(demand.wanted(now), 0, "without use nothing is kept");
        demand.asked(now);
        assert_eq!(demand.wanted(now), 1);
        for _ in 0..4 {
            now += 100 * MS;
            demand.asked(now);
        }
        assert_eq!(demand.wanted(now), 1, "one after the other needs one");
        (0..100).for_each(|_| demand.asked(now));
        assert_eq!(demand.wanted(now), 8, "never more than the most");
        assert_eq!(demand.lately.len(), 8, "nor more remembered");
    }

    #[test]
    fn the_further_away_the_more() {
        let start = Instant::now();
        let [mut near, mut far] = [MS, 50 * MS].map(|time| {
            let mut demand = Demand::new(start, 100, IDLE);
            demand.took(time);
            demand
        });
        for n in 0..1_000 {
            near.asked(start + n * MS);
            far.asked(start + n * MS);
        }
        let now = start + 1_000 * MS;
        assert_eq!((near.wanted(now), far.wanted(now)), (7, 100));
    }

    #[test]
    fn use_is_forgotten() {
        let start = Instant::now();
        let mut demand = Demand::new(start, 8, IDLE);
        (0..5).for_each(|_| demand.asked(start));
        assert_eq!(demand.wanted(start + IDLE / 2), 5, "for half of the time at least");
        assert_eq!(demand.wanted(start + IDLE), 0);
        (0..5).for_each(|_| demand.asked(start + IDLE));
        assert_eq!(demand.wanted(start + IDLE * 10), 0, "also when nobody looked meanwhile");
    }

    #[test]
    fn who_is_expected_counts_until_it_comes() {
        let start = Instant::now();
        let mut demand = Demand::new(start, 8, IDLE);
        demand.expects(start, 3);
        assert_eq!(demand.wanted(start), 3);
        demand.asked(start);
        demand.asked(start + 20 * MS);
        demand.asked(start + 40 * MS);
        assert_eq!(demand.wanted(start + 40 * MS), 1, "all are there");
        demand.expects(start, 5);
        assert_eq!(demand.wanted(start + IDLE), 0, "nobody came");
    }

    #[test]
    fn what_has_stopped_wants_nothing() {
        let start = Instant::now();
        let mut demand = Demand::new(start, 8, IDLE);
        demand.asked(start);
        demand.stop();
        demand.expects(start, 3);
        demand.asked(start);
        assert_eq!(demand.wanted(start), 0);
    }
}
