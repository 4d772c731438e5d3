//! Round-trip time to a node, and the difference of its clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Age of the oldest ping that counts.
const SAMPLE_WINDOW: Duration = Duration::from_secs(60);
/// Maximum pings in memory: those of the window, twice a second, and some more.
const MAX_SAMPLES: usize = 256;

/// One answered ping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PingSample {
    /// Time from the request to the response.
    pub round_trip: Duration,
    /// Own time at the request, in microseconds since 1970.
    pub sent_micros: u64,
    /// Peer's time in its response, in microseconds since 1970.
    pub peer_micros: u64,
}

/// Result of the ping with the smallest round trip of the last minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockEstimate {
    /// Round-trip time of that ping.
    pub round_trip: Duration,
    /// Peer's clock minus the own, in microseconds. Its error is half the round trip at most.
    pub offset_micros: i64,
}

impl PingSample {
    /// Estimates the clocks' difference: the peer reads its clock in the middle of the round trip.
    fn estimate(self) -> ClockEstimate {
        let half = self.round_trip.as_micros() / 2;
        let own = i128::from(self.sent_micros).saturating_add_unsigned(half);
        let offset = i128::from(self.peer_micros) - own;
        let bounded = offset.clamp(i64::MIN.into(), i64::MAX.into());
        ClockEstimate {
            round_trip: self.round_trip,
            offset_micros: i64::try_from(bounded).unwrap_or_default(),
        }
    }
}

/// Pings of the last minute.
#[derive(Debug, Default)]
pub struct ClockSamples(VecDeque<(Instant, ClockEstimate)>);

impl ClockSamples {
    /// Adds an answered ping and returns the best of the last minute.
    pub fn add(&mut self, sample: PingSample, now: Instant) -> ClockEstimate {
        let estimate = sample.estimate();
        let is_old = |at: Instant| now.saturating_duration_since(at) > SAMPLE_WINDOW;
        while self.0.len() >= MAX_SAMPLES || self.0.front().is_some_and(|(at, _)| is_old(*at)) {
            self.0.pop_front();
        }
        self.0.push_back((now, estimate));
        // A short round trip leaves the least room for an asymmetric path (RFC 5905 section 10).
        let estimates = self.0.iter().map(|(_, estimate)| *estimate);
        estimates
            .min_by_key(|estimate| estimate.round_trip)
            .unwrap_or(estimate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(round_trip: u64, peer_micros: u64) -> PingSample {
        PingSample {
            round_trip: Duration::from_micros(round_trip),
            sent_micros: 1_000_000,
            peer_micros,
        }
    }

    #[test]
    fn the_shortest_round_trip_of_the_last_minute_counts() {
        let (mut samples, start) = (ClockSamples::default(), Instant::now());
        let mut offset_at = |seconds, sample| {
            let estimate = samples.add(sample, start + Duration::from_secs(seconds));
            (estimate.round_trip.as_micros(), estimate.offset_micros)
        };
        assert_eq!(offset_at(0, sample(200, 1_000_600)), (200, 500));
        assert_eq!(offset_at(1, sample(9_000, 1_000_600)), (200, 500));
        assert_eq!(offset_at(2, sample(100, 999_050)), (100, -1_000));
        assert_eq!(offset_at(61, sample(400, 1_000_200)), (100, -1_000));
        assert_eq!(
            offset_at(63, sample(500, 1_000_250)),
            (400, 0),
            "a minute later"
        );
    }

    #[test]
    fn any_time_of_a_peer_gives_an_offset() {
        let far = PingSample {
            round_trip: Duration::MAX,
            sent_micros: u64::MAX,
            peer_micros: 0,
        };
        assert_eq!(far.estimate().offset_micros, i64::MIN);
        assert_eq!(sample(0, u64::MAX).estimate().offset_micros, i64::MAX);
    }

    #[test]
    fn memory_is_bounded() {
        let (mut samples, now) = (ClockSamples::default(), Instant::now());
        for _ in 0..1_000 {
            samples.add(sample(1, 1), now);
        }
        assert_eq!(samples.0.len(), MAX_SAMPLES);
    }
}
