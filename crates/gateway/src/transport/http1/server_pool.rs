//! Connections to one instance's own server, shared by all threads.
//!
//! A server may handle one connection at a time (Python's `HTTPServer`). An idle connection that
//! another thread cannot use would then block its requests. A connection stays with the event loop
//! of the thread that used it last; that thread takes it first.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nearpath_types::FunctionServer;
use tokio::time::timeout;

use super::connection::ServerConnection;
use super::idle_limit::IdleLimit;
use super::oom_kills::OomKills;
use super::unanswered::UnansweredConnections;
use crate::event_loop::Poller;
use crate::function::FunctionEndpoint;

/// Maximum idle connections of an instance.
const MAX_IDLE_CONNECTIONS: usize = 1024;
/// Maximum connections of an instance that are being opened. A simple server has a backlog of five,
/// and the kernel drops further ones.
const MAX_OPENING: u32 = 4;
/// Time limit of opening a connection. After it, the request goes to the watchdog, which waits
/// longer.
const OPEN_TIMEOUT: Duration = Duration::from_millis(50);
/// Time without further attempts after one that took too long: each would delay its request.
const OPEN_BACKOFF: Duration = Duration::from_secs(1);

/// Connections to one instance.
pub(super) struct ServerPool {
    endpoint: Arc<FunctionEndpoint>,
    server: Arc<FunctionServer>,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    /// In the order in which they became idle.
    idle: Vec<IdleConnection>,
    idle_limit: IdleLimit,
    opening: u32,
    /// End of the backoff after an attempt that took too long.
    opens_from: Option<Instant>,
    unanswered: UnansweredConnections,
    oom_kills: OomKills,
    /// No connection is kept any more.
    is_closed: bool,
}

/// Connection without a request.
struct IdleConnection {
    connection: ServerConnection,
    since: Instant,
}

impl IdleConnection {
    fn age_at(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

/// Permission to open a connection; ends when dropped.
struct OpeningPermit<'a>(&'a ServerPool);

/// A connection without a response yet, which its pool counts until this is dropped.
pub(super) struct UnansweredMark(Arc<ServerPool>);

impl ServerPool {
    pub(super) fn new(endpoint: &Arc<FunctionEndpoint>, server: &Arc<FunctionServer>) -> Self {
        Self {
            endpoint: endpoint.clone(),
            server: server.clone(),
            state: Mutex::default(),
        }
    }

    /// Takes an idle connection, if one can carry a request now; with the time for which it was
    /// idle.
    pub(super) fn take_idle(
        &self,
        poller: &Poller,
        now: Instant,
    ) -> Option<(ServerConnection, Duration)> {
        loop {
            // The lock is free again before a useless one is closed.
            let (idle, limit) = self.lock_state().pop_idle(poller, now)?;
            let (age, mut connection) = (idle.age_at(now), idle.connection);
            if age >= limit {
                continue;
            }
            connection.move_to(poller).ok()?; // the others would fail, too
            if connection.is_open_and_silent(age) {
                return Some((connection, age));
            }
            self.note_closed(age);
        }
    }

    /// Notes that the server had closed a connection that was idle for so long.
    pub(super) fn note_closed(&self, idle_age: Duration) {
        let now = Instant::now();
        self.lock_state().idle_limit.note_closed(idle_age, now);
    }

    /// Opens a connection. `None`: nothing could be sent, and the watchdog can tell why, or wait.
    pub(super) async fn open(
        self: &Arc<Self>,
        poller: &Poller,
    ) -> Option<(ServerConnection, UnansweredMark)> {
        let _permit = self.begin_opening()?;
        let opening = ServerConnection::open(&self.server, poller);
        let Ok(opened) = timeout(OPEN_TIMEOUT, opening).await else {
            self.lock_state().opens_from = Some(Instant::now() + OPEN_BACKOFF);
            return None;
        };
        let connection = opened.ok()?;
        self.lock_state().unanswered.add(Instant::now());
        Some((connection, UnansweredMark(self.clone())))
    }

    fn begin_opening(&self) -> Option<OpeningPermit<'_>> {
        let kills = self.server.network.oom_kills();
        let now = Instant::now();
        let mut state = self.lock_state();
        // Calls of this connection begin later, and are not to blame an earlier kill.
        state.oom_kills.note_count(kills, now);
        let is_backing_off = state.opens_from.is_some_and(|from| now < from);
        if state.opening >= MAX_OPENING || is_backing_off {
            return None;
        }
        state.opening += 1;
        Some(OpeningPermit(self))
    }

    /// Keeps a connection for another request.
    pub(super) fn put_idle(&self, connection: ServerConnection) {
        let since = Instant::now();
        let is_withdrawn = self.endpoint.is_withdrawn();
        let mut state = self.lock_state();
        let age_limit = state.unanswered.connection_age_limit(since);
        let is_kept = !is_withdrawn
            && !state.is_closed
            && state.idle.len() < MAX_IDLE_CONNECTIONS
            && connection.age_at(since) < age_limit
            && connection.may_carry_more();
        if is_kept {
            state.idle.push(IdleConnection { connection, since });
        }
    }

    /// Closes connections that were idle for too long. Returns whether the pool is still needed.
    pub(super) fn sweep_idle(&self, now: Instant) -> bool {
        let is_withdrawn = self.endpoint.is_withdrawn();
        let mut state = self.lock_state();
        let limit = state.idle_limit.limit_at(now);
        let is_old = |idle: &mut IdleConnection| is_withdrawn || idle.age_at(now) >= limit;
        let old: Vec<_> = state.idle.extract_if(.., is_old).collect();
        drop(state);
        drop(old); // without the lock
        !is_withdrawn
    }

    /// Closes all idle connections, and keeps none from now on.
    pub(super) fn close(&self) {
        let mut state = self.lock_state();
        state.is_closed = true;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        drop(idle); // without the lock
    }

    /// Returns whether a kill for lack of memory may have ended a call that began then.
    pub(super) fn was_killed_for_memory(&self, call_began: Instant) -> bool {
        let kills = self.server.network.oom_kills();
        let mut state = self.lock_state();
        state.oom_kills.note_count(kills, Instant::now());
        state.oom_kills.may_have_ended(call_began)
    }

    fn lock_state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    /// Takes the newest connection, first of those that this event loop watches; with the age limit.
    fn pop_idle(&mut self, poller: &Poller, now: Instant) -> Option<(IdleConnection, Duration)> {
        let is_own = |idle: &IdleConnection| idle.connection.is_watched_by(poller);
        let own = self.idle.iter().rposition(is_own);
        let index = own.or(self.idle.len().checked_sub(1))?;
        Some((self.idle.remove(index), self.idle_limit.limit_at(now)))
    }
}

impl UnansweredMark {
    /// Notes the connection's first response.
    pub(super) fn note_answer(self) {
        let now = Instant::now();
        self.0.lock_state().unanswered.note_answer(now);
    }
}

impl Drop for UnansweredMark {
    fn drop(&mut self) {
        self.0.lock_state().unanswered.remove();
    }
}

impl Drop for OpeningPermit<'_> {
    fn drop(&mut self) {
        self.0.lock_state().opening -= 1;
    }
}
