//! Confirmable messages that are out, sent again until they are acknowledged (RFC 7252 section 4.2).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::exchanges::Key;
use super::observers::Whose;

/// ACK_TIMEOUT; the first wait is up to half as long again (ACK_RANDOM_FACTOR), and each one doubles.
const ACK_TIMEOUT: Duration = Duration::from_secs(2);
/// MAX_RETRANSMIT.
const TRIES: u8 = 4;

#[derive(Debug)]
struct Out {
    bytes: Vec<u8>,
    at: Instant,
    wait: Duration,
    left: u8,
    whose: Option<Whose>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Resends {
    out: HashMap<Key, Out>,
    random: u64,
}

impl Resends {
    pub(super) fn new(seed: u64) -> Self {
        Self { out: HashMap::new(), random: seed | 1 }
    }

    /// A message went out; if it is a notification, this is whose.
    pub(super) fn sent(&mut self, to: SocketAddr, message: u16, bytes: Vec<u8>, whose: Option<Whose>, now: Instant) {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let wait = ACK_TIMEOUT + Duration::from_millis((self.random >> 33) % 1_000);
        self.out.insert((to, message), Out { bytes, at: now + wait, wait, left: TRIES, whose });
    }

    /// It was acknowledged, or refused: that is all. `None`: no such message is out.
    pub(super) fn heard(&mut self, from: SocketAddr, message: u16) -> Option<Option<Whose>> {
        self.out.remove(&(from, message)).map(|out| out.whose)
    }

    /// What is to be sent again. `lost`: whose notifications nobody takes any more.
    pub(super) fn due(&mut self, now: Instant, mut lost: impl FnMut(&Whose)) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut again = Vec::new();
        self.out.retain(|(to, _), out| {
            if now < out.at {
                return true;
            }
            if out.left == 0 {
                out.whose.iter().for_each(&mut lost);
                return false;
            }
            out.left -= 1;
            out.wait *= 2;
            out.at = now + out.wait;
            again.push((*to, out.bytes.clone()));
            true
        });
        again
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.out.values().map(|out| out.at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_times_and_then_no_more() {
        let mut now = Instant::now();
        let to: SocketAddr = "192.0.2.1:5683".parse().unwrap();
        let (mut resends, mut lost, mut sent) = (Resends::new(7), Vec::new(), 0);
        resends.sent(to, 1, vec![1], Some((to, vec![9])), now);
        let start = now;
        while let Some(next) = resends.next() {
            now = next;
            sent += resends.due(now, |whose| lost.push(whose.clone())).len();
        }
        assert_eq!((sent, lost), (4, vec![(to, vec![9])]));
        assert!((62..=93).contains(&(now - start).as_secs()), "MAX_TRANSMIT_WAIT: {:?}", now - start);
        assert_eq!(resends.heard(to, 1), None);
    }
}
