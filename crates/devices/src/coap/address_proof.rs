//! Proof of a client's address (RFC 9175): it sent back a value that was sent only there.
//!
//! Challenges need no memory; the list of proven addresses is bounded and expires.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Lifetime of a proof. Requests do not prolong it: they could be forged.
const PROOF_LIFETIME: Duration = Duration::from_secs(300);
/// A challenge is accepted in its epoch and in the next one.
const EPOCH_SECONDS: u64 = 60;
/// Proven addresses; an attacker with many addresses of its own must not use up memory.
const MAX_PROVEN: usize = 4_096;

/// The addresses that are proven.
#[derive(Debug)]
pub(super) struct AddressProofs {
    /// Keys the hash; random per process, so that no client can compute a challenge.
    key: RandomState,
    start: Instant,
    proven: HashMap<SocketAddr, Instant>,
    trust_loopback: bool,
}

impl AddressProofs {
    pub(super) fn new(start: Instant, trust_loopback: bool) -> Self {
        Self {
            key: RandomState::new(),
            start,
            proven: HashMap::new(),
            trust_loopback,
        }
    }

    /// Returns the value that this client has to send back.
    pub(super) fn challenge(&self, from: SocketAddr, now: Instant) -> Vec<u8> {
        self.challenge_value(from, self.epoch(now))
    }

    /// Verifies a value that came back. A wrong one changes nothing.
    pub(super) fn verify(&mut self, from: SocketAddr, challenge_value: &[u8], now: Instant) {
        let epoch = self.epoch(now);
        // The previous epoch too: a challenge may be sent just before its end.
        if [epoch, epoch.wrapping_sub(1)]
            .iter()
            .all(|epoch| self.challenge_value(from, *epoch) != challenge_value)
        {
            return;
        }
        if self.proven.len() >= MAX_PROVEN {
            self.proven.retain(|_, since| now < *since + PROOF_LIFETIME);
        }
        // At the limit new clients stay unproven: they are served in small responses.
        if self.proven.len() < MAX_PROVEN {
            self.proven.insert(from, now);
        }
    }

    /// Returns whether the client's address is proven.
    pub(super) fn is_proven(&self, from: SocketAddr, now: Instant) -> bool {
        // Canonical: a dual-stack socket sees `::ffff:127.0.0.1`.
        let trusted = self.trust_loopback && from.ip().to_canonical().is_loopback();
        trusted
            || self
                .proven
                .get(&from)
                .is_some_and(|since| now < *since + PROOF_LIFETIME)
    }

    fn epoch(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_secs() / EPOCH_SECONDS
    }

    fn challenge_value(&self, from: SocketAddr, epoch: u64) -> Vec<u8> {
        self.key.hash_one((from, epoch)).to_be_bytes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_for_one_address_and_expires() {
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        let (one, other) = (
            "192.0.2.1:5683".parse().unwrap(),
            "192.0.2.1:5684".parse().unwrap(),
        );
        let mut proofs = AddressProofs::new(start, true);
        let challenge_value = proofs.challenge(one, start);
        proofs.verify(other, &challenge_value, start);
        proofs.verify(one, &challenge_value, later(120));
        assert!(
            !proofs.is_proven(other, start) && !proofs.is_proven(one, start),
            "another's, and too late"
        );
        proofs.verify(one, &challenge_value, later(61));
        assert!(proofs.is_proven(one, later(360)) && !proofs.is_proven(one, later(361)));
        assert!(
            proofs.is_proven("127.0.0.1:1".parse().unwrap(), start)
                && proofs.is_proven("[::ffff:127.0.0.1]:1".parse().unwrap(), start)
        );
        assert!(!AddressProofs::new(start, false).is_proven("127.0.0.1:1".parse().unwrap(), start));
    }
}
