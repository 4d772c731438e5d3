//! Retransmission of confirmable messages until they are acknowledged (RFC 7252 section 4.2).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::deduplication::MessageKey;
use super::observers::ObserverKey;

/// ACK_TIMEOUT. The first wait is up to half longer (ACK_RANDOM_FACTOR 1.5); each further one
/// doubles.
const ACK_TIMEOUT: Duration = Duration::from_secs(2);
/// MAX_RETRANSMIT (RFC 7252 section 4.8).
const MAX_RETRANSMIT: u8 = 4;

#[derive(Debug)]
struct UnackedMessage {
    bytes: Vec<u8>,
    due_at: Instant,
    wait: Duration,
    retries_left: u8,
    observer_key: Option<ObserverKey>,
}

/// The messages that are unacknowledged.
#[derive(Debug)]
pub(super) struct Retransmissions {
    unacked: HashMap<MessageKey, UnackedMessage>,
    random: u64,
}

impl Retransmissions {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            unacked: HashMap::new(),
            // Jitter needs no secrecy, so the seed of the message numbers serves here as well.
            random: seed | 1,
        }
    }

    /// Adds a message that was sent; `observer_key` is set for a notification.
    pub(super) fn add(
        &mut self,
        to: SocketAddr,
        message: u16,
        bytes: Vec<u8>,
        observer_key: Option<ObserverKey>,
        now: Instant,
    ) {
        self.random = self
            .random
            // Knuth's MMIX multiplier; its low bits are weak, hence the shift below.
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let wait = ACK_TIMEOUT + Duration::from_millis((self.random >> 33) % 1_000);
        self.unacked.insert(
            (to, message),
            UnackedMessage {
                bytes,
                due_at: now + wait,
                wait,
                retries_left: MAX_RETRANSMIT,
                observer_key,
            },
        );
    }

    /// Removes a message that was acknowledged or reset; `None` if it is unknown.
    pub(super) fn remove(&mut self, from: SocketAddr, message: u16) -> Option<Option<ObserverKey>> {
        self.unacked
            .remove(&(from, message))
            .map(|unacked| unacked.observer_key)
    }

    /// Returns the messages to send again. `given_up` gets observers that acknowledge nothing any
    /// more.
    pub(super) fn take_due(
        &mut self,
        now: Instant,
        mut given_up: impl FnMut(&ObserverKey),
    ) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut messages = Vec::new();
        self.unacked.retain(|(to, _), unacked| {
            if now < unacked.due_at {
                return true;
            }
            // The last wait is over too: MAX_TRANSMIT_WAIT, 93 s at most (RFC 7252 section 4.8.2).
            if unacked.retries_left == 0 {
                unacked.observer_key.iter().for_each(&mut given_up);
                return false;
            }
            unacked.retries_left -= 1;
            unacked.wait *= 2;
            unacked.due_at = now + unacked.wait;
            messages.push((*to, unacked.bytes.clone()));
            true
        });
        messages
    }

    /// Returns the time at which the next message is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.unacked.values().map(|unacked| unacked.due_at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_sent_four_more_times() {
        let mut now = Instant::now();
        let to: SocketAddr = "192.0.2.1:5683".parse().unwrap();
        let (mut retransmissions, mut given_up, mut add) = (Retransmissions::new(7), Vec::new(), 0);
        retransmissions.add(to, 1, vec![1], Some((to, vec![9])), now);
        let start = now;
        while let Some(next_due) = retransmissions.next_due() {
            now = next_due;
            add += retransmissions
                .take_due(now, |observer_key| given_up.push(observer_key.clone()))
                .len();
        }
        assert_eq!((add, given_up), (4, vec![(to, vec![9])]));
        assert!(
            (62..=93).contains(&(now - start).as_secs()),
            "MAX_TRANSMIT_WAIT: {:?}",
            now - start
        );
        assert_eq!(retransmissions.remove(to, 1), None);
    }
}
