//! Whom to let in: everybody, until too many handshakes are under way; then those who prove that they have the address that they
//! send from. Pure: it is told what happens and knows no socket.
//!
//! A proof costs the client a round trip (Retry, RFC 9000 section 8.1.2) and costs this side nothing: no state is kept, so a flood from
//! forged addresses ends here.

/// See the module's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Handshakes under way from which on newcomers must prove their address; 0: always.
    retry_threshold: usize,
    /// Handshakes under way from which on nobody is let in.
    refuse_threshold: usize,
    half_open: usize,
}

/// What becomes of a newcomer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeVerdict {
    /// Its handshake begins; [`RetryPolicy::settled`] is to be called when it ends, whichever way.
    Admit,
    /// It must prove its address first.
    Retry,
    /// It is turned away.
    Refuse,
}

impl RetryPolicy {
    /// Newcomers prove their address while `prove` handshakes or more are under way. With `prove` times eight, and at least 1,024, none
    /// is let in.
    pub fn new(retry_threshold: usize) -> Self {
        Self {
            retry_threshold: retry_threshold,
            refuse_threshold: retry_threshold.saturating_mul(8).max(1_024),
            half_open: 0,
        }
    }

    /// Decides. `proven`: it bears a token that proves its address. `room`: there is room for one more connection.
    pub fn decide_handshake(&mut self, proven: bool, has_capacity: bool) -> HandshakeVerdict {
        if !has_capacity || self.half_open >= self.refuse_threshold {
            return HandshakeVerdict::Refuse;
        }
        if self.half_open >= self.retry_threshold && !proven {
            return HandshakeVerdict::Retry;
        }
        self.half_open += 1;
        HandshakeVerdict::Admit
    }

    /// A handshake that was let begin is complete, or was given up.
    pub fn handshake_ended(&mut self) {
        self.half_open = self.half_open.saturating_sub(1);
    }

    /// Handshakes under way.
    pub fn half_open(&self) -> usize {
        self.half_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_threshold_of_zero_always_asks_for_a_proof() {
        assert_eq!(
            RetryPolicy::new(0).decide_handshake(false, true),
            HandshakeVerdict::Retry
        );
        assert_eq!(
            RetryPolicy::new(0).decide_handshake(true, true),
            HandshakeVerdict::Admit
        );
    }

    #[test]
    fn a_flood_without_proof_leaves_capacity_for_proven_clients() {
        let mut policy = RetryPolicy::new(4);
        let verdicts: Vec<_> = (0..10_000)
            .map(|_| policy.decide_handshake(false, true))
            .collect();
        assert_eq!(
            verdicts
                .iter()
                .filter(|one| **one == HandshakeVerdict::Admit)
                .count(),
            4
        );
        assert_eq!(
            (verdicts.last(), policy.decide_handshake(true, true)),
            (Some(&HandshakeVerdict::Retry), HandshakeVerdict::Admit)
        );
        policy.handshake_ended();
        policy.handshake_ended();
        assert_eq!(
            policy.decide_handshake(false, true),
            HandshakeVerdict::Admit
        );
    }

    proptest! {
        #[test]
        fn what_is_under_way_is_counted_and_bounded(prove in 0_usize..300, steps: Vec<(bool, bool, bool)>) {
            let (mut door, mut under_way) = (RetryPolicy::new(prove), 0_usize);
            for (end, proven, room) in steps {
                if end && under_way > 0 {
                    door.handshake_ended();
                    under_way -= 1;
                    continue;
                }
                match door.decide_handshake(proven, room) {
                    HandshakeVerdict::Admit => {
                        prop_assert!(room && (proven || under_way < prove));
                        under_way += 1;
                    }
                    HandshakeVerdict::Retry => prop_assert!(!proven && under_way >= prove),
                    HandshakeVerdict::Refuse => prop_assert!(!room || under_way >= 1_024),
                }
                prop_assert_eq!(door.half_open(), under_way);
            }
        }
    }
}
