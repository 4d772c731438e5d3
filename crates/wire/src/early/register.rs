//! The worker's half: which sessions may still be used, each once.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rustls::server::StoresServerSessions;

/// Sessions that one worker remembers; more push the oldest out. An entry is about 700 bytes: it holds the peer's certificate.
const MOST: usize = 16 * 1024;
/// How long a session can be used (RFC 8446 section 4.6.1 allows seven days).
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// What the worker remembers of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The ticket that the caller shows.
    pub ticket: Vec<u8>,
    /// rustls's own words.
    pub session: Vec<u8>,
}

/// See the module's text. It belongs to one incarnation of one worker: an entry that two of them had could be used twice.
#[derive(Debug)]
pub struct Register(Mutex<State>);

#[derive(Debug)]
struct State {
    entries: HashMap<Vec<u8>, (Vec<u8>, Instant)>,
    order: VecDeque<Vec<u8>>,
    end: Option<Instant>,
    most: usize,
    used: u64,
    unknown: u64,
}

impl Register {
    /// An empty one, whose entries end with the worker's certificate.
    pub fn new(certificates_end: Option<Instant>) -> Self {
        Self::with_room(certificates_end, MOST)
    }

    /// One that remembers `most` sessions.
    pub fn with_room(certificates_end: Option<Instant>, most: usize) -> Self {
        let (entries, order) = (HashMap::new(), VecDeque::new());
        Self(Mutex::new(State { entries, order, end: certificates_end, most, used: 0, unknown: 0 }))
    }

    /// Adds entries that were minted for this incarnation.
    pub fn provision(&self, entries: impl IntoIterator<Item = Entry>, now: Instant) {
        let mut state = self.lock();
        for Entry { ticket, session } in entries {
            state.put(ticket, session, now);
        }
    }

    /// The certificate was replaced: entries that come from now on end with the new one.
    pub fn ends(&self, certificates_end: Instant) {
        self.lock().end = Some(certificates_end);
    }

    /// Takes all entries out.
    pub fn drain(&self) -> Vec<Entry> {
        let mut state = self.lock();
        state.order.clear();
        state.entries.drain().map(|(ticket, (session, _))| Entry { ticket, session }).collect()
    }

    /// How many sessions were used, and how many tickets were shown that are not (or no more) known: expired, or replayed.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.lock();
        (state.used, state.unknown)
    }

    /// Sessions that can be used.
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// Whether no session can be used.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn put(&mut self, ticket: Vec<u8>, session: Vec<u8>, now: Instant) {
        while self.entries.len() >= self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
        let end = self.end.map_or(now + LIFETIME, |end| end.min(now + LIFETIME));
        if self.entries.insert(ticket.clone(), (session, end)).is_none() {
            self.order.push_back(ticket);
        }
        if self.order.len() > 2 * self.most {
            self.order.retain(|ticket| self.entries.contains_key(ticket)); // tickets that were used are left there
        }
    }

    fn take(&mut self, ticket: &[u8], now: Instant) -> Option<Vec<u8>> {
        let found = self.entries.remove(ticket).filter(|(_, end)| now < *end);
        match found {
            Some(_) => self.used += 1,
            None => self.unknown += 1,
        }
        found.map(|(session, _)| session)
    }
}

impl StoresServerSessions for Register {
    fn put(&self, ticket: Vec<u8>, session: Vec<u8>) -> bool {
        self.lock().put(ticket, session, Instant::now());
        true
    }

    /// Asked only for TLS 1.2, which is not spoken here.
    fn get(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn take(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.lock().take(ticket, Instant::now())
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Put(u8),
        Take(u8),
        Pass(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            any::<u8>().prop_map(Step::Put),
            any::<u8>().prop_map(Step::Take),
            (0u32..40_000).prop_map(Step::Pass)
        ]
    }

    proptest! {
        #[test]
        fn no_session_is_used_twice_or_after_its_end(steps in proptest::collection::vec(step(), 0..200), end in 0u64..200_000) {
            let begin = Instant::now();
            let (mut now, end) = (begin, begin + Duration::from_secs(end));
            let register = Register::new(Some(end));
            let mut good = HashMap::new();
            for step in steps {
                match step {
                    Step::Put(ticket) => {
                        register.lock().put(vec![ticket], vec![1], now);
                        good.insert(ticket, (now + LIFETIME).min(end));
                    }
                    Step::Take(ticket) => {
                        let wanted = good.remove(&ticket).is_some_and(|end| now < end);
                        prop_assert_eq!(register.lock().take(&[ticket], now).is_some(), wanted);
                    }
                    Step::Pass(seconds) => now += Duration::from_secs(seconds.into()),
                }
            }
        }
    }

    #[test]
    fn it_is_bounded_and_the_oldest_go() {
        let (register, now) = (Register::new(None), Instant::now());
        let ticket = |k: usize| k.to_le_bytes().to_vec();
        register.provision((0..MOST + 10).map(|k| Entry { ticket: ticket(k), session: Vec::new() }), now);
        assert_eq!(register.len(), MOST);
        assert!(register.lock().take(&ticket(9), now).is_none() && register.lock().take(&ticket(10), now).is_some());
        for k in 0..5 * MOST {
            register.lock().put(ticket(k), Vec::new(), now);
            register.lock().take(&ticket(k), now);
        }
        assert!(register.lock().order.len() <= 2 * MOST + 1);
    }
}
