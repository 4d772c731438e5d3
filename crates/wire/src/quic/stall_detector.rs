//! Detection of connections that nothing gets through any more, while calls are in flight or the
//! process drains. [`StallDetector`] is pure: counters and time are arguments.
//!
//! UDP does not report a dead path. The peer acknowledges data within a round trip, whatever its
//! handler does; else the data is sent again, at doubling intervals (RFC 9002 section 6.2). So a
//! connection that only sends for a while is dead. A connection that sends nothing proves nothing
//! until the next keep-alive.

use std::time::{Duration, Instant};

/// Time without any received packet after which a connection is dead. A path change, or a worker
/// without CPU time, needs some of it.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of the checks.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Packet counters of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PacketCounts {
    /// Datagrams received.
    pub(super) received: u64,
    /// Packets sent. The last acknowledgement among them may get no response, so a single check
    /// proves nothing.
    pub(super) sent: u64,
}

/// Detects a stall from successive counters.
#[derive(Debug)]
pub(super) struct StallDetector {
    last: PacketCounts,
    /// First check that saw packets sent after the last received one, and the number of such
    /// checks.
    unanswered: Option<(Instant, u32)>,
}

impl StallDetector {
    /// Starts with the current counters.
    pub(super) fn starting_at(last: PacketCounts) -> Self {
        Self {
            last,
            unanswered: None,
        }
    }

    /// Returns true if the connection is dead: for [`STALL_TIMEOUT`], in more than two checks,
    /// packets were sent and none received.
    pub(super) fn observe(&mut self, now: Instant, counts: PacketCounts) -> bool {
        // Anything received proves that the path works in both directions.
        if counts.received != self.last.received {
            *self = Self::starting_at(counts);
            return false;
        }
        if counts.sent != self.last.sent {
            let (since, looks) = self.unanswered.unwrap_or((now, 0));
            self.unanswered = Some((since, looks + 1));
            // Only checks with new packets count: without them nothing was to be acknowledged.
            self.last = counts;
        }
        // Two checks can be explained by a last acknowledgement, which needs no response.
        self.unanswered.is_some_and(|(since, looks)| {
            looks > 2 && now.saturating_duration_since(since) >= STALL_TIMEOUT
        })
    }
}

/// Returns when the peer of a connection has gone: for [`STALL_TIMEOUT`] it answered nothing that was
/// sent.
pub async fn wait_stalled(connection: &quinn::Connection) {
    let mut detector = StallDetector::starting_at(PacketCounts::from(connection));
    while !detector.observe(Instant::now(), PacketCounts::from(connection)) {
        tokio::time::sleep(CHECK_INTERVAL).await;
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
