//! Requests that came lately, so that one which comes again is answered from memory and not run again (RFC 7252 section 4.5).

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// EXCHANGE_LIFETIME.
const LIFETIME: Duration = Duration::from_secs(247);
const MOST: usize = 65_536;

/// A message: whose, and its number.
pub(super) type Key = (SocketAddr, u16);

/// What has become of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// It is at its function.
    Working,
    /// The same, and its client was told to wait.
    Acknowledged,
    /// This was the answer.
    Answered(Vec<u8>),
}

/// See the module. When memory runs out the oldest answers are forgotten.
#[derive(Debug)]
pub(super) struct Exchanges {
    known: HashMap<Key, (State, Instant)>,
    order: VecDeque<(Key, Instant)>,
    bytes: usize,
    memory: usize,
}

impl Exchanges {
    /// `memory`: bytes of answers that are kept.
    pub(super) fn new(memory: usize) -> Self {
        Self { known: HashMap::new(), order: VecDeque::new(), bytes: 0, memory }
    }

    /// A request comes. `Some`: it came before.
    pub(super) fn begin(&mut self, key: Key, now: Instant) -> Option<&State> {
        self.sweep(now);
        if self.known.contains_key(&key) {
            return self.known.get(&key).map(|(state, _)| state);
        }
        self.known.insert(key, (State::Working, now));
        self.order.push_back((key, now));
        None
    }

    /// Something has become of it.
    pub(super) fn set(&mut self, key: Key, state: State) {
        let Some((known, _)) = self.known.get_mut(&key) else { return };
        self.bytes = self.bytes + weight(&state) - weight(known);
        *known = state;
    }

    fn sweep(&mut self, now: Instant) {
        for _ in 0..self.order.len() {
            let full = self.known.len() >= MOST || self.bytes > self.memory;
            let Some((key, since)) = self.order.front().copied().filter(|(_, since)| full || now >= *since + LIFETIME)
            else {
                return;
            };
            self.order.pop_front();
            let answered = matches!(self.known.get(&key), Some((State::Answered(_), _)));
            if !answered {
                self.order.push_back((key, since)); // at its function still: it would run again
                continue;
            }
            if let Some((state, _)) = self.known.remove(&key) {
                self.bytes -= weight(&state);
            }
        }
    }
}

fn weight(state: &State) -> usize {
    if let State::Answered(bytes) = state { bytes.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(number: u16) -> Key {
        ("192.0.2.1:5683".parse().unwrap(), number)
    }

    #[test]
    fn an_answer_is_remembered_for_its_lifetime() {
        let start = Instant::now();
        let mut exchanges = Exchanges::new(1 << 20);
        assert_eq!(exchanges.begin(key(1), start), None);
        assert_eq!(exchanges.begin(key(1), start), Some(&State::Working));
        exchanges.set(key(1), State::Answered(vec![7]));
        let last = start + LIFETIME - Duration::from_millis(1);
        assert_eq!(exchanges.begin(key(1), last), Some(&State::Answered(vec![7])));
        assert_eq!(exchanges.begin(key(1), start + LIFETIME), None);
    }

    proptest! {
        #[test]
        fn it_is_bounded_and_nothing_that_works_is_forgotten(steps in prop::collection::vec((0u16..40, any::<bool>(), 0u64..30), 1..200)) {
            let mut now = Instant::now();
            let mut exchanges = Exchanges::new(1_000);
            let mut working = std::collections::HashSet::new();
            for (number, answer, seconds) in steps {
                now += Duration::from_secs(seconds);
                let came_before = exchanges.begin(key(number), now).cloned();
                if working.contains(&number) {
                    prop_assert_eq!(came_before, Some(State::Working));
                }
                working.insert(number);
                if answer {
                    exchanges.set(key(number), State::Answered(vec![0; 100]));
                    working.remove(&number);
                }
                if exchanges.begin(key(number), now) == Some(&State::Answered(vec![0; 100])) {
                    working.remove(&number);
                }
                prop_assert!(exchanges.bytes <= 1_100);
                prop_assert_eq!(exchanges.order.len(), exchanges.known.len());
            }
        }
    }
}
