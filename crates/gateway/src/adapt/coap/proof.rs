//! Who has shown that it receives what is sent to its address (RFC 9175): it sent back a value that only there could be known.
//! Nothing is kept for a challenge; what is kept of the proven is bounded and ages.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long a proof holds. Requests do not prolong it: they could be forged.
const HOLDS: Duration = Duration::from_secs(300);
/// A value is accepted in its minute and the next one.
const EPOCH: u64 = 60;
const MOST: usize = 4_096;

/// See the module.
#[derive(Debug)]
pub(super) struct Proofs {
    /// A keyed hash, with a key that is random for each process.
    key: RandomState,
    start: Instant,
    proven: HashMap<SocketAddr, Instant>,
    trust_loopback: bool,
}

impl Proofs {
    pub(super) fn new(start: Instant, trust_loopback: bool) -> Self {
        Self { key: RandomState::new(), start, proven: HashMap::new(), trust_loopback }
    }

    /// The value that this client has to send back.
    pub(super) fn challenge(&self, from: SocketAddr, now: Instant) -> Vec<u8> {
        self.value(from, self.epoch(now))
    }

    /// Takes a value that came back. A wrong one changes nothing.
    pub(super) fn check(&mut self, from: SocketAddr, value: &[u8], now: Instant) {
        let epoch = self.epoch(now);
        if [epoch, epoch.wrapping_sub(1)].iter().all(|epoch| self.value(from, *epoch) != value) {
            return;
        }
        if self.proven.len() >= MOST {
            self.proven.retain(|_, since| now < *since + HOLDS);
        }
        if self.proven.len() < MOST {
            self.proven.insert(from, now);
        }
    }

    /// Whether the client is where it says.
    pub(super) fn holds(&self, from: SocketAddr, now: Instant) -> bool {
        let trusted = self.trust_loopback && from.ip().to_canonical().is_loopback();
        trusted || self.proven.get(&from).is_some_and(|since| now < *since + HOLDS)
    }

    fn epoch(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_secs() / EPOCH
    }

    fn value(&self, from: SocketAddr, epoch: u64) -> Vec<u8> {
        self.key.hash_one((from, epoch)).to_be_bytes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_for_one_address_and_a_while() {
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        let (one, other) = ("192.0.2.1:5683".parse().unwrap(), "192.0.2.1:5684".parse().unwrap());
        let mut proofs = Proofs::new(start, true);
        let value = proofs.challenge(one, start);
        proofs.check(other, &value, start);
        proofs.check(one, &value, later(120));
        assert!(!proofs.holds(other, start) && !proofs.holds(one, start), "another's, and too late");
        proofs.check(one, &value, later(61));
        assert!(proofs.holds(one, later(360)) && !proofs.holds(one, later(361)));
        assert!(
            proofs.holds("127.0.0.1:1".parse().unwrap(), start)
                && proofs.holds("[::ffff:127.0.0.1]:1".parse().unwrap(), start)
        );
        assert!(!Proofs::new(start, false).holds("127.0.0.1:1".parse().unwrap(), start));
    }
}
