//! The caller's half of sessions, kept in memory only.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use quinn_proto::TokenStore;
use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// Maximum number of sessions and tokens of one worker. As many connections can start at once with
/// a request in their first flight.
const MAX_SESSIONS_PER_WORKER: usize = 8;
/// Maximum number of workers; further ones evict the oldest. A session takes about 2 KB.
const MAX_WORKERS: usize = 16 * 1024;

/// Sessions and address tokens of a caller, by the names of workers' incarnations. Using a session
/// removes it.
#[derive(Default)]
pub struct CallerSessions(Mutex<WorkerTable>);

#[derive(Default)]
struct WorkerTable {
    workers: HashMap<String, KnownWorker>,
    insertion_order: VecDeque<String>,
}

#[derive(Default)]
struct KnownWorker {
    sessions: VecDeque<Tls13ClientSessionValue>,
    tokens: VecDeque<Bytes>,
    key_exchange_group: Option<NamedGroup>,
}

impl CallerSessions {
    /// Removes a worker that has ended.
    pub fn forget_worker(&self, worker: &str) {
        self.lock_table().workers.remove(worker);
    }

    /// Removes everything, after the caller's own certificate was replaced.
    pub fn clear_all(&self) {
        *self.lock_table() = WorkerTable::default();
    }

    /// Number of sessions left for a worker.
    pub fn session_count(&self, worker: &str) -> usize {
        self.lock_table()
            .workers
            .get(worker)
            .map_or(0, |entry| entry.sessions.len())
    }

    /// Number of known workers.
    pub fn worker_count(&self) -> usize {
        self.lock_table().workers.len()
    }

    fn lock_table(&self) -> MutexGuard<'_, WorkerTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkerTable {
    fn entry_of(&mut self, worker: &str) -> &mut KnownWorker {
        if !self.workers.contains_key(worker) {
            while self.workers.len() >= MAX_WORKERS
                && let Some(oldest) = self.insertion_order.pop_front()
            {
                self.workers.remove(&oldest);
            }
            // Compacted rarely, so that forgetting a worker stays O(1).
            if self.insertion_order.len() > 2 * MAX_WORKERS {
                self.insertion_order
                    // forgotten workers stay in the order until now
                    .retain(|worker| self.workers.contains_key(worker));
            }
            self.insertion_order.push_back(worker.to_owned());
        }
        self.workers.entry(worker.to_owned()).or_default()
    }
}

fn push_bounded<T>(queue: &mut VecDeque<T>, item: T) {
    // The oldest goes: it expires first.
    if queue.len() >= MAX_SESSIONS_PER_WORKER {
        queue.pop_front();
    }
    queue.push_back(item);
}

impl fmt::Debug for CallerSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sessions(of {} workers)", self.worker_count())
    }
}

impl ClientSessionStore for CallerSessions {
    fn set_kx_hint(&self, name: ServerName<'static>, group: NamedGroup) {
        self.lock_table()
            .entry_of(&name.to_str())
            .key_exchange_group = Some(group);
    }

    fn kx_hint(&self, name: &ServerName<'_>) -> Option<NamedGroup> {
        self.lock_table()
            .workers
            .get(&*name.to_str())?
            .key_exchange_group
    }

    // TLS 1.2 is never resumed, see `mtls::config`.
    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, name: ServerName<'static>, session: Tls13ClientSessionValue) {
        push_bounded(
            &mut self.lock_table().entry_of(&name.to_str()).sessions,
            session,
        );
    }

    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.lock_table()
            .workers
            .get_mut(&*name.to_str())?
            .sessions
            .pop_front()
    }
}

impl TokenStore for CallerSessions {
    fn insert(&self, name: &str, token: Bytes) {
        push_bounded(&mut self.lock_table().entry_of(name).tokens, token);
    }

    fn take(&self, name: &str) -> Option<Bytes> {
        self.lock_table().workers.get_mut(name)?.tokens.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_used_once_and_bounded() {
        let sessions = CallerSessions::default();
        for k in 0..20u8 {
            sessions.insert("worker", Bytes::from(vec![k]));
        }
        let left: Vec<u8> = std::iter::from_fn(|| TokenStore::take(&sessions, "worker"))
            .map(|token| token[0])
            .collect();
        assert_eq!(left, (12..20).collect::<Vec<u8>>());
        sessions.insert("worker", Bytes::new());
        sessions.forget_worker("worker");
        assert_eq!(
            (
                TokenStore::take(&sessions, "worker"),
                sessions.worker_count()
            ),
            (None, 0)
        );
    }

    #[test]
    fn workers_are_bounded() {
        let sessions = CallerSessions::default();
        for k in 0..MAX_WORKERS + 5 {
            sessions.insert(&k.to_string(), Bytes::new());
        }
        assert_eq!(sessions.worker_count(), MAX_WORKERS);
        assert!(
            TokenStore::take(&sessions, "4").is_none()
                && TokenStore::take(&sessions, "5").is_some()
        );
        for k in 0..5 * MAX_WORKERS {
            sessions.insert(&k.to_string(), Bytes::new());
            sessions.forget_worker(&k.to_string());
        }
        assert!(sessions.lock_table().insertion_order.len() <= 2 * MAX_WORKERS + 1);
    }
}
