//! Whether a connection still gets through, while calls are under way on it. Pure: what it counted and the time are arguments.
//!
//! UDP does not tell when nobody hears any more. What is sent is acknowledged within a round trip, whatever the handler does, or sent
//! again, sooner at first and then at twice the distance each time (RFC 9002 section 6.2). So a connection on which only that happened
//! for a while is dead; one on which nothing is sent says nothing, until the next sign of life is due.

use std::time::{Duration, Instant};

/// How long what was sent may bring nothing back: a path that changes, or a worker without a processor, may need some of that.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// How often is looked.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What a connection has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PacketCounts {
    /// Datagrams that came.
    pub(super) received: u64,
    /// Packets that went out. A last acknowledgement among them may never be answered: so one look that sees some proves nothing.
    pub(super) sent: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct StallDetector {
    last: PacketCounts,
    /// When it was first seen that something went out after the last that came, and in how many looks since.
    unanswered: Option<(Instant, u32)>,
}

impl StallDetector {
    /// With what was counted so far, which proves nothing.
    pub(super) fn starting_at(last: PacketCounts) -> Self {
        Self {
            last,
            unanswered: None,
        }
    }

    /// Whether it is dead: for [`LONGEST`], and in more than two looks, something went out and nothing came.
    pub(super) fn observe(&mut self, now: Instant, counts: PacketCounts) -> bool {
        if counts.received != self.last.received {
            *self = Self::starting_at(counts);
            return false;
        }
        if counts.sent != self.last.sent {
            let (since, looks) = self.unanswered.unwrap_or((now, 0));
            self.unanswered = Some((since, looks + 1));
            self.last = counts;
        }
        self.unanswered.is_some_and(|(since, looks)| {
            looks > 2 && now.saturating_duration_since(since) >= STALL_TIMEOUT
        })
    }
}

impl From<&quinn::Connection> for PacketCounts {
    fn from(connection: &quinn::Connection) -> Self {
        let stats = connection.stats();
        Self {
            received: stats.udp_rx.datagrams,
            sent: stats.path.sent_packets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(received: u64, sent: u64) -> PacketCounts {
        PacketCounts { received, sent }
    }

    #[test]
    fn repeated_sends_without_an_answer_are_a_stall() {
        let (begin, mut detector) = (Instant::now(), StallDetector::starting_at(counts(7, 7)));
        let at = |seconds| begin + Duration::from_secs(seconds);
        let looks = [(1, 8), (2, 9), (3, 9), (4, 10), (5, 10)];
        assert!(
            looks
                .iter()
                .all(|(second, sent)| !detector.observe(at(*second), counts(7, *sent)))
        );
        assert!(detector.observe(at(6), counts(7, 10)));
        assert!(
            !detector.observe(at(7), counts(8, 10)),
            "it was not, after all"
        );
        assert!(
            !detector.observe(at(8), counts(8, 11)) && !detector.observe(at(100), counts(8, 11)),
            "its acknowledgement"
        );
    }

    proptest! {
        #[test]
        fn who_is_answered_in_time_or_says_nothing_is_never_silent(
            steps in proptest::collection::vec((1u64..4_000, 0u64..3, any::<bool>()), 0..100),
        ) {
            let (mut now, mut seen) = (Instant::now(), counts(0, 0));
            let (mut silence, mut waits) = (StallDetector::starting_at(seen), Duration::ZERO);
            for (pass, sent, answered) in steps {
                let pass = Duration::from_millis(pass);
                now += pass;
                seen.sent += sent;
                let answered = answered || (waits > Duration::ZERO && waits + pass >= STALL_TIMEOUT);
                seen.received += u64::from(answered);
                waits = match answered {
                    true => Duration::ZERO,
                    false if sent > 0 || waits > Duration::ZERO => waits + pass,
                    false => waits,
                };
                prop_assert!(!silence.observe(now, seen));
            }
        }
    }
}
