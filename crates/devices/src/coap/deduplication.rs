//! Deduplication: a repeated request is answered from memory and does not run again (RFC 7252
//! section 4.5).

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// EXCHANGE_LIFETIME (RFC 7252 section 4.8.2).
const EXCHANGE_LIFETIME: Duration = Duration::from_secs(247);
const MAX_EXCHANGES: usize = 65_536;

/// A message's sender and identifier.
pub(super) type MessageKey = (SocketAddr, u16);

/// The state of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ExchangeState {
    /// Its function has not answered.
    InProgress,
    /// Its function has not answered, and its client got an acknowledgement.
    Acknowledged,
    /// The response that was sent.
    Answered(Vec<u8>),
}

/// Recent requests. Above the memory limit the oldest responses are dropped.
#[derive(Debug)]
pub(super) struct ExchangeCache {
    states: HashMap<MessageKey, (ExchangeState, Instant)>,
    order: VecDeque<(MessageKey, Instant)>,
    bytes: usize,
    max_bytes: usize,
}

impl ExchangeCache {
    /// Keeps responses up to `max_bytes` bytes.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            states: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
            max_bytes,
        }
    }

    /// Registers a request; returns its state if it is a repetition.
    pub(super) fn begin(&mut self, key: MessageKey, now: Instant) -> Option<&ExchangeState> {
        self.evict(now);
        if self.states.contains_key(&key) {
            return self.states.get(&key).map(|(state, _)| state);
        }
        self.states.insert(key, (ExchangeState::InProgress, now));
        self.order.push_back((key, now));
        None
    }

    /// Updates the state of a request.
    pub(super) fn set(&mut self, key: MessageKey, state: ExchangeState) {
        let Some((states, _)) = self.states.get_mut(&key) else {
            return;
        };
        self.bytes = self.bytes + cost(&state) - cost(states);
        *states = state;
    }

    fn evict(&mut self, now: Instant) {
        // Bounded by the length: requests in progress go back to the end of the queue.
        for _ in 0..self.order.len() {
            let full = self.states.len() >= MAX_EXCHANGES || self.bytes > self.max_bytes;
            let Some((key, since)) = self
                .order
                .front()
                .copied()
                .filter(|(_, since)| full || now >= *since + EXCHANGE_LIFETIME)
            else {
                return;
            };
            self.order.pop_front();
            let is_answered =
                matches!(self.states.get(&key), Some((ExchangeState::Answered(_), _)));
            if !is_answered {
                self.order.push_back((key, since)); // forgotten, a repetition would run it twice
                continue;
            }
            if let Some((state, _)) = self.states.remove(&key) {
                self.bytes -= cost(&state);
            }
        }
    }
}

fn cost(state: &ExchangeState) -> usize {
    if let ExchangeState::Answered(bytes) = state {
        bytes.len()
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(number: u16) -> MessageKey {
        ("192.0.2.1:5683".parse().unwrap(), number)
    }

    #[test]
    fn a_response_is_kept_for_its_lifetime() {
        let start = Instant::now();
        let mut exchanges = ExchangeCache::new(1 << 20);
        assert_eq!(exchanges.begin(key(1), start), None);
        assert_eq!(
            exchanges.begin(key(1), start),
            Some(&ExchangeState::InProgress)
        );
        exchanges.set(key(1), ExchangeState::Answered(vec![7]));
        let last = start + EXCHANGE_LIFETIME - Duration::from_millis(1);
        assert_eq!(
            exchanges.begin(key(1), last),
            Some(&ExchangeState::Answered(vec![7]))
        );
        assert_eq!(exchanges.begin(key(1), start + EXCHANGE_LIFETIME), None);
    }

    proptest! {
        #[test]
        fn memory_is_bounded_and_running_requests_stay(steps in prop::collection::vec((0u16..40, any::<bool>(), 0u64..30), 1..200)) {
            let mut now = Instant::now();
            let mut exchanges = ExchangeCache::new(1_000);
            let mut working = std::collections::HashSet::new();
            for (number, answer, seconds) in steps {
                now += Duration::from_secs(seconds);
                let came_before = exchanges.begin(key(number), now).cloned();
                if working.contains(&number) {
                    prop_assert_eq!(came_before, Some(ExchangeState::InProgress));
                }
                working.insert(number);
                if answer {
                    exchanges.set(key(number), ExchangeState::Answered(vec![0; 100]));
                    working.remove(&number);
                }
                if exchanges.begin(key(number), now) == Some(&ExchangeState::Answered(vec![0; 100])) {
                    working.remove(&number);
                }
                prop_assert!(exchanges.bytes <= 1_100);
                prop_assert_eq!(exchanges.order.len(), exchanges.states.len());
            }
        }
    }
}
