//! Policy for new connections: all are accepted until too many handshakes are under way, or much of
//! the server's capacity is in use; then only clients with a validated address. Pure: events are
//! arguments, and there is no socket.
//!
//! Validation costs the client a round trip (Retry, RFC 9000 section 8.1.2) and the server no
//! state. So a flood from forged addresses ends here.

/// Counts unfinished handshakes and decides about new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Number of unfinished handshakes from which on new clients must validate their address; 0:
    /// always.
    retry_threshold: usize,
    /// Number of unfinished handshakes from which on every new connection is refused.
    refuse_threshold: usize,
    half_open: usize,
}

/// Capacity of a server for one more connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeCapacity {
    /// For any client.
    Free,
    /// For clients with a validated address.
    ForValidated,
    /// For none.
    Exhausted,
}

/// Decision about a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeVerdict {
    /// The handshake starts. Its end, successful or not, must be reported with
    /// [`RetryPolicy::handshake_ended`].
    Admit,
    /// The client must validate its address first.
    Retry,
    /// The connection is refused.
    Refuse,
}

impl RetryPolicy {
    /// Requires address validation from `retry_threshold` unfinished handshakes on. From eight
    /// times as many on, and at least 1,024, every new connection is refused.
    pub fn new(retry_threshold: usize) -> Self {
        Self {
            retry_threshold,
            refuse_threshold: retry_threshold.saturating_mul(8).max(1_024),
            half_open: 0,
        }
    }

    /// Decides about a new connection. `proven`: the client presented a token that validates its
    /// address.
    pub fn decide_handshake(
        &mut self,
        proven: bool,
        capacity: HandshakeCapacity,
    ) -> HandshakeVerdict {
        // Checked before address validation: a Retry would only delay the refusal.
        if capacity == HandshakeCapacity::Exhausted || self.half_open >= self.refuse_threshold {
            return HandshakeVerdict::Refuse;
        }
        let needs_proof =
            self.half_open >= self.retry_threshold || capacity == HandshakeCapacity::ForValidated;
        if needs_proof && !proven {
            return HandshakeVerdict::Retry;
        }
        self.half_open += 1;
        HandshakeVerdict::Admit
    }

    /// Reports that an admitted handshake is complete or was given up.
    pub fn handshake_ended(&mut self) {
        self.half_open = self.half_open.saturating_sub(1);
    }

    /// Number of unfinished handshakes.
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
            RetryPolicy::new(0).decide_handshake(false, HandshakeCapacity::Free),
            HandshakeVerdict::Retry
        );
        assert_eq!(
            RetryPolicy::new(0).decide_handshake(true, HandshakeCapacity::Free),
            HandshakeVerdict::Admit
        );
    }

    #[test]
    fn a_flood_without_proof_leaves_capacity_for_proven_clients() {
        let mut policy = RetryPolicy::new(4);
        let verdicts: Vec<_> = (0..10_000)
            .map(|_| policy.decide_handshake(false, HandshakeCapacity::Free))
            .collect();
        assert_eq!(
            verdicts
                .iter()
                .filter(|one| **one == HandshakeVerdict::Admit)
                .count(),
            4
        );
        assert_eq!(
            (
                verdicts.last(),
                policy.decide_handshake(true, HandshakeCapacity::Free)
            ),
            (Some(&HandshakeVerdict::Retry), HandshakeVerdict::Admit)
        );
        policy.handshake_ended();
        policy.handshake_ended();
        assert_eq!(
            policy.decide_handshake(false, HandshakeCapacity::Free),
            HandshakeVerdict::Admit
        );
    }

    proptest! {
        #[test]
        fn what_is_under_way_is_counted_and_bounded(prove in 0_usize..300, steps in prop::collection::vec((any::<bool>(), any::<bool>(), 0usize..3), 0..100)) {
            let (mut door, mut under_way) = (RetryPolicy::new(prove), 0_usize);
            for (end, proven, room) in steps {
                if end && under_way > 0 {
                    door.handshake_ended();
                    under_way -= 1;
                    continue;
                }
                let capacity = [
                    HandshakeCapacity::Free,
                    HandshakeCapacity::ForValidated,
                    HandshakeCapacity::Exhausted,
                ][room];
                let needs_proof = under_way >= prove || capacity == HandshakeCapacity::ForValidated;
                match door.decide_handshake(proven, capacity) {
                    HandshakeVerdict::Admit => {
                        prop_assert!(capacity != HandshakeCapacity::Exhausted && (proven || !needs_proof));
                        under_way += 1;
                    }
                    HandshakeVerdict::Retry => prop_assert!(!proven && needs_proof),
                    HandshakeVerdict::Refuse => prop_assert!(capacity == HandshakeCapacity::Exhausted || under_way >= 1_024),
                }
                prop_assert_eq!(door.half_open(), under_way);
            }
        }
    }
}
