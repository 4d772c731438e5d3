//! The caller's half: what it remembers of the workers it may call. In memory only.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use quinn_proto::TokenStore;
use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// Sessions and tokens kept for one worker: as many connections can begin at once with a request in their first flight.
const MOST_OF_ONE: usize = 8;
/// Workers that are remembered; more push the oldest out. A session is about 2 KB.
const MOST_WORKERS: usize = 16 * 1024;

/// See the module's text. A session is taken out when it is used. Workers are known by the names of their incarnations.
#[derive(Default)]
pub struct Sessions(Mutex<State>);

#[derive(Default)]
struct State {
    workers: HashMap<String, Known>,
    order: VecDeque<String>,
}

#[derive(Default)]
struct Known {
    sessions: VecDeque<Tls13ClientSessionValue>,
    tokens: VecDeque<Bytes>,
    group: Option<NamedGroup>,
}

impl Sessions {
    /// Forgets a worker that is gone.
    pub fn forget(&self, worker: &str) {
        self.lock().workers.remove(worker);
    }

    /// Forgets all: the caller's own certificate was replaced.
    pub fn clear(&self) {
        *self.lock() = State::default();
    }

    /// Sessions that are left for a worker.
    pub fn left(&self, worker: &str) -> usize {
        self.lock().workers.get(worker).map_or(0, |known| known.sessions.len())
    }

    /// Workers that are remembered.
    pub fn workers(&self) -> usize {
        self.lock().workers.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn of(&mut self, worker: &str) -> &mut Known {
        if !self.workers.contains_key(worker) {
            while self.workers.len() >= MOST_WORKERS
                && let Some(oldest) = self.order.pop_front()
            {
                self.workers.remove(&oldest);
            }
            if self.order.len() > 2 * MOST_WORKERS {
                self.order.retain(|worker| self.workers.contains_key(worker)); // those that were forgotten
            }
            self.order.push_back(worker.to_owned());
        }
        self.workers.entry(worker.to_owned()).or_default()
    }
}

fn keep<T>(queue: &mut VecDeque<T>, one: T) {
    if queue.len() >= MOST_OF_ONE {
        queue.pop_front();
    }
    queue.push_back(one);
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sessions(of {} workers)", self.workers())
    }
}

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, name: ServerName<'static>, group: NamedGroup) {
        self.lock().of(&name.to_str()).group = Some(group);
    }

    fn kx_hint(&self, name: &ServerName<'_>) -> Option<NamedGroup> {
        self.lock().workers.get(&*name.to_str())?.group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, name: ServerName<'static>, session: Tls13ClientSessionValue) {
        keep(&mut self.lock().of(&name.to_str()).sessions, session);
    }

    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.lock().workers.get_mut(&*name.to_str())?.sessions.pop_front()
    }
}

impl TokenStore for Sessions {
    fn insert(&self, name: &str, token: Bytes) {
        keep(&mut self.lock().of(name).tokens, token);
    }

    fn take(&self, name: &str) -> Option<Bytes> {
        self.lock().workers.get_mut(name)?.tokens.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_used_once_and_bounded() {
        let sessions = Sessions::default();
        for k in 0..20u8 {
            sessions.insert("worker", Bytes::from(vec![k]));
        }
        let left: Vec<u8> =
            std::iter::from_fn(|| TokenStore::take(&sessions, "worker")).map(|token| token[0]).collect();
        assert_eq!(left, (12..20).collect::<Vec<u8>>());
        sessions.insert("worker", Bytes::new());
        sessions.forget("worker");
        assert_eq!((TokenStore::take(&sessions, "worker"), sessions.workers()), (None, 0));
    }

    #[test]
    fn workers_are_bounded() {
        let sessions = Sessions::default();
        for k in 0..MOST_WORKERS + 5 {
            sessions.insert(&k.to_string(), Bytes::new());
        }
        assert_eq!(sessions.workers(), MOST_WORKERS);
        assert!(TokenStore::take(&sessions, "4").is_none() && TokenStore::take(&sessions, "5").is_some());
        for k in 0..5 * MOST_WORKERS {
            sessions.insert(&k.to_string(), Bytes::new());
            sessions.forget(&k.to_string());
        }
        assert!(sessions.lock().order.len() <= 2 * MOST_WORKERS + 1);
    }
}
