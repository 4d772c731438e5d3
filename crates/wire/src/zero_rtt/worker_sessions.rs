//! The worker's half of sessions. Each entry can be used once.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rustls::server::StoresServerSessions;

/// Maximum number of sessions of one worker; further ones evict the oldest. An entry takes about
/// 700 bytes: it holds the peer's certificate.
const MAX_SESSIONS: usize = 16 * 1024;
/// Time for which a session can be used. RFC 8446 section 4.6.1 allows seven days.
const SESSION_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The worker's half of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionEntry {
    /// Ticket that the caller presents.
    pub ticket: Vec<u8>,
    /// Session state in the format of rustls.
    pub session: Vec<u8>,
}

/// Sessions of one incarnation of one worker. They must not be shared: an entry that two
/// incarnations have could be used twice.
#[derive(Debug)]
pub struct WorkerSessions(Mutex<SessionTable>);

#[derive(Debug)]
struct SessionTable {
    entries: HashMap<Vec<u8>, (Vec<u8>, Instant)>,
    insertion_order: VecDeque<Vec<u8>>,
    certificate_end: Option<Instant>,
    max_sessions: usize,
    used_count: u64,
    unknown_count: u64,
}

impl WorkerSessions {
    /// Creates an empty store whose entries expire with the worker's certificate at the latest.
    pub fn new(certificates_end: Option<Instant>) -> Self {
        Self::with_capacity(certificates_end, MAX_SESSIONS)
    }

    /// Creates an empty store for at most `max_sessions` sessions.
    pub fn with_capacity(certificates_end: Option<Instant>, max_sessions: usize) -> Self {
        let (entries, order) = (HashMap::new(), VecDeque::new());
        Self(Mutex::new(SessionTable {
            entries,
            insertion_order: order,
            certificate_end: certificates_end,
            max_sessions,
            used_count: 0,
            unknown_count: 0,
        }))
    }

    /// Adds entries that were minted for this incarnation.
    pub fn insert_minted(&self, entries: impl IntoIterator<Item = SessionEntry>, now: Instant) {
        let mut state = self.lock_table();
        for SessionEntry { ticket, session } in entries {
            state.insert_session(ticket, session, now);
        }
    }

    /// Limits entries that are added from now on to the end of the new certificate.
    pub fn set_certificate_end(&self, certificates_end: Instant) {
        self.lock_table().certificate_end = Some(certificates_end);
    }

    /// Removes and returns all entries.
    pub fn drain_entries(&self) -> Vec<SessionEntry> {
        let mut state = self.lock_table();
        state.insertion_order.clear();
        state
            .entries
            .drain()
            .map(|(ticket, (session, _))| SessionEntry { ticket, session })
            .collect()
    }

    /// Counts sessions that were used, and presented tickets that are unknown: expired or replayed.
    pub fn use_counts(&self) -> (u64, u64) {
        let state = self.lock_table();
        (state.used_count, state.unknown_count)
    }

    /// Number of sessions that can be used.
    pub fn len(&self) -> usize {
        self.lock_table().entries.len()
    }

    /// Returns true if no session can be used.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock_table(&self) -> std::sync::MutexGuard<'_, SessionTable> {
        // A panic cannot leave the table inconsistent: each change is a single map operation.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionTable {
    fn insert_session(&mut self, ticket: Vec<u8>, session: Vec<u8>, now: Instant) {
        // A ticket in the order may be used up already; then the next one is evicted.
        while self.entries.len() >= self.max_sessions
            && let Some(oldest) = self.insertion_order.pop_front()
        {
            self.entries.remove(&oldest);
        }
        // The session must not outlive the certificate: rustls does not check that again at
        // resumption.
        let end = self.certificate_end.map_or(now + SESSION_LIFETIME, |end| {
            end.min(now + SESSION_LIFETIME)
        });
        if self
            .entries
            .insert(ticket.clone(), (session, end))
            .is_none()
        {
            self.insertion_order.push_back(ticket);
        }
        // Compacted rarely, so that using a session stays O(1).
        if self.insertion_order.len() > 2 * self.max_sessions {
            self.insertion_order
                // used tickets stay in the order until now
                .retain(|ticket| self.entries.contains_key(ticket));
        }
    }

    fn take_session(&mut self, ticket: &[u8], now: Instant) -> Option<Vec<u8>> {
        // Removed before the check of its age: each ticket works once, whatever its outcome.
        let found = self.entries.remove(ticket).filter(|(_, end)| now < *end);
        match found {
            Some(_) => self.used_count += 1,
            None => self.unknown_count += 1,
        }
        found.map(|(session, _)| session)
    }
}

impl StoresServerSessions for WorkerSessions {
    fn put(&self, ticket: Vec<u8>, session: Vec<u8>) -> bool {
        self.lock_table()
            .insert_session(ticket, session, Instant::now());
        true
    }

    /// rustls calls it for TLS 1.2 only, which QUIC does not have.
    fn get(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn take(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.lock_table().take_session(ticket, Instant::now())
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
    enum StoreStep {
        Put(u8),
        Take(u8),
        Pass(u32),
    }

    fn any_step() -> impl Strategy<Value = StoreStep> {
        prop_oneof![
            any::<u8>().prop_map(StoreStep::Put),
            any::<u8>().prop_map(StoreStep::Take),
            (0u32..40_000).prop_map(StoreStep::Pass)
        ]
    }

    proptest! {
        #[test]
        fn no_session_is_used_twice_or_after_its_end(steps in proptest::collection::vec(any_step(), 0..200), end in 0u64..200_000) {
            let begin = Instant::now();
            let (mut now, end) = (begin, begin + Duration::from_secs(end));
            let sessions = WorkerSessions::new(Some(end));
            let mut good = HashMap::new();
            for step in steps {
                match step {
                    StoreStep::Put(ticket) => {
                        sessions.lock_table().insert_session(vec![ticket], vec![1], now);
                        good.insert(ticket, (now + SESSION_LIFETIME).min(end));
                    }
                    StoreStep::Take(ticket) => {
                        let wanted = good.remove(&ticket).is_some_and(|end| now < end);
                        prop_assert_eq!(sessions.lock_table().take_session(&[ticket], now).is_some(), wanted);
                    }
                    StoreStep::Pass(seconds) => now += Duration::from_secs(seconds.into()),
                }
            }
        }
    }

    #[test]
    fn the_oldest_sessions_are_evicted() {
        let (sessions, now) = (WorkerSessions::new(None), Instant::now());
        let ticket = |k: usize| k.to_le_bytes().to_vec();
        sessions.insert_minted(
            (0..MAX_SESSIONS + 10).map(|k| SessionEntry {
                ticket: ticket(k),
                session: Vec::new(),
            }),
            now,
        );
        assert_eq!(sessions.len(), MAX_SESSIONS);
        assert!(
            sessions
                .lock_table()
                .take_session(&ticket(9), now)
                .is_none()
                && sessions
                    .lock_table()
                    .take_session(&ticket(10), now)
                    .is_some()
        );
        for k in 0..5 * MAX_SESSIONS {
            sessions
                .lock_table()
                .insert_session(ticket(k), Vec::new(), now);
            sessions.lock_table().take_session(&ticket(k), now);
        }
        assert!(sessions.lock_table().insertion_order.len() <= 2 * MAX_SESSIONS + 1);
    }
}
