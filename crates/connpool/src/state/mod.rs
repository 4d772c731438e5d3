//! Which connections stay open: a pure state machine. No socket, no clock: time is an argument.
//!
//! Events go in: a client asks, a connection is open, failed or closed, time has passed.
//! [`StateAction`]s come out of [`PoolState::poll`]. Every connection is opened for one key and
//! serves only that key. It is handed out once, and never returns after it was used.
//!
//! Connections of all keys in a limit group count together. Each key has its own limit on that
//! count. Clients above the limit wait in `wait_queue`: FIFO within a function, round-robin
//! between functions. A slot that a client waits for is never kept idle: warm connections are
//! closed, and adapters are asked for idle ones. `demand` decides how many stay warm;
//! `limit_group` tracks failures.
//!
//! Invariants: a connection is being opened for each granted waiter. A waiter is queued only while
//! no connection of its key is warm and its limit is reached. Nothing is opened ahead of use while
//! a client waits.

mod arena;
mod demand;
mod key_state;
mod limit_group;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod timers;
mod transitions;
mod types;
mod wait_queue;
mod waiters;

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

pub use types::{
    KeyFigures, KeyId, KeyTerms, RefusalReason, RequestOutcome, RequesterId, SocketId, StateAction,
    WaitTicket,
};

use crate::pool::NextWaiter;
use arena::IdArena;
use key_state::{KeyLifecycle, KeyState, SocketPhase, SocketRecord};
use limit_group::{LimitGroup, MIN_STABLE_AGE};
use timers::{TimerEntry, TimerQueue};
use waiters::WaitingClient;

/// All connections of a node to declared destinations.
#[derive(Debug)]
pub struct PoolState {
    keys: IdArena<KeyState>,
    groups: IdArena<LimitGroup>,
    group_ids: BTreeMap<Box<str>, u64>,
    sockets: IdArena<SocketRecord>,
    waiters: BTreeMap<WaitTicket, WaitingClient>,
    last_ticket: u64,
    timers: TimerQueue,
    actions: VecDeque<StateAction>,
}

impl Default for PoolState {
    fn default() -> Self {
        Self::new()
    }
}

impl PoolState {
    /// Creates an empty state.
    pub const fn new() -> Self {
        Self {
            keys: IdArena::new(),
            groups: IdArena::new(),
            group_ids: BTreeMap::new(),
            sockets: IdArena::new(),
            waiters: BTreeMap::new(),
            last_ticket: 0,
            timers: TimerQueue::new(),
            actions: VecDeque::new(),
        }
    }

    /// Declares a new key in a limit group. Keys in one group count together.
    pub fn declare_key(&mut self, now: Instant, group: &str, terms: KeyTerms) -> KeyId {
        let group_id = match self.group_ids.get(group) {
            Some(group_id) => *group_id,
            None => {
                let group_id = self.groups.insert(LimitGroup::with_name(group));
                self.group_ids.insert(group.into(), group_id);
                group_id
            }
        };
        let key = KeyId(self.keys.insert(KeyState::new(now, group_id, terms)));
        self.limit_group_mut(group_id).keys.insert(key);
        key
    }

    /// Announces clients of this key: their instances are about to start.
    pub fn expect_clients(&mut self, now: Instant, key: KeyId, clients: u32) {
        let Some(key_state) = self.keys.get_mut(key.0) else {
            return;
        };
        key_state.demand.expect_clients(now, clients);
        self.replenish_key(now, key);
    }

    /// Takes a warm connection. Returns `None` and changes nothing if there is none.
    pub fn take_warm(&mut self, now: Instant, key: KeyId) -> Option<SocketId> {
        let key_state = self.keys.get(key.0)?;
        let newest = *key_state.warm.back()?;
        if now >= key_state.expires_at(self.phase_since(newest)) {
            // If the newest has expired, all have.
            self.review_key(now, key);
            return None;
        }
        let key_state = self.key_state_mut(key);
        key_state.warm.pop_back();
        key_state.hits += 1;
        key_state.demand.record_request(now);
        self.set_phase(now, newest, SocketPhase::InUse);
        self.replenish_key(now, key);
        Some(newest)
    }

    /// Returns the warm connections in the order in which [`take_warm`](Self::take_warm) takes
    /// them.
    pub fn warm_sockets(&self, key: KeyId) -> impl Iterator<Item = SocketId> {
        self.keys
            .get(key.0)
            .into_iter()
            .flat_map(|key_state| key_state.warm.iter().rev().copied())
    }

    /// Returns the key of a connection.
    pub fn key_of(&self, socket: SocketId) -> Option<KeyId> {
        self.sockets.get(socket.0).map(|record| record.key)
    }

    /// Records that a warm connection was taken from its ready slot, even one that was about to be
    /// closed. Otherwise changes nothing.
    pub fn confirm_taken(&mut self, now: Instant, socket: SocketId) {
        let Some(&SocketRecord { key, phase, .. }) = self.sockets.get(socket.0) else {
            return;
        };
        let key_state = self.key_state_mut(key);
        match phase {
            SocketPhase::Warm => key_state.warm.retain(|warm| *warm != socket),
            // The close was counted as waste, but a supervisor uses the connection after all.
            SocketPhase::Closing => key_state.wasted -= 1,
            SocketPhase::Connecting | SocketPhase::InUse => return,
        }
        key_state.hits += 1;
        key_state.demand.record_request(now);
        let group_id = key_state.group;
        self.set_phase(now, socket, SocketPhase::InUse);
        if phase == SocketPhase::Closing {
            // A waiter that was to get this slot now waits for another one.
            self.limit_group_mut(group_id).closing_count -= 1;
            self.serve_waiters(now, group_id);
            self.request_reclaim(group_id);
        }
        self.replenish_key(now, key);
    }

    /// Requests an unused connection. The client waits for a slot until `deadline`. The dialler
    /// bounds the time to open it, and reports [`socket_failed`](Self::socket_failed).
    pub fn request_socket(
        &mut self,
        now: Instant,
        key: KeyId,
        requester: RequesterId,
        deadline: Instant,
    ) -> RequestOutcome {
        if let Some(socket) = self.take_warm(now, key) {
            return RequestOutcome::Take(socket);
        }
        match self.keys.get_mut(key.0) {
            // A miss counts as demand, so that the next client finds a warm connection.
            Some(key_state) if key_state.lifecycle < KeyLifecycle::Forgotten => {
                key_state.demand.record_request(now)
            }
            _ => return RequestOutcome::Refused(RefusalReason::KeyForgotten),
        }
        let outcome = self.request_new(now, key, requester, deadline);
        self.replenish_key(now, key);
        outcome
    }

    /// Records that a connection is open.
    pub fn socket_connected(&mut self, now: Instant, socket: SocketId) {
        // A connect that was aborted meanwhile is in phase `Closing`; its close is reported as
        // well.
        let Some(record) = self
            .sockets
            .get(socket.0)
            .filter(|record| record.phase == SocketPhase::Connecting)
        else {
            return;
        };
        let (key, took) = (record.key, now.duration_since(record.since));
        let key_state = self.key_state_mut(key);
        key_state.connecting.remove(&socket);
        key_state.demand.record_connect_time(took);
        let group_id = key_state.group;
        self.limit_group_mut(group_id).record_success(now);
        self.place_open_socket(now, key, socket);
        self.serve_waiters(now, group_id);
        self.replenish_key(now, key);
    }

    /// Records that the destination refused a connection. At most one waiter fails with it: each
    /// has its own attempt.
    pub fn socket_failed(&mut self, now: Instant, socket: SocketId) {
        let Some(record) = self.sockets.get(socket.0) else {
            return;
        };
        // A connection that was open before is no failed connect.
        let tried = record.phase == SocketPhase::Connecting;
        let removed = self.remove_socket(socket);
        if tried {
            self.limit_group_mut(removed.group).record_failure(now);
            self.key_state_mut(removed.key).failed += 1;
        }
        let key_state = self.key_state(removed.key);
        // More grants than connects: a waiter has lost its attempt.
        if key_state.granted.len() > key_state.connecting.len() {
            let first = *key_state
                .granted
                .first()
                .expect("more grants than connects");
            self.refuse_waiter(first, RefusalReason::Failed);
        }
        self.follow_removal(now, removed);
    }

    /// Takes back a connection that was handed to a client that had gone.
    pub fn socket_unused(&mut self, now: Instant, socket: SocketId) {
        let Some(record) = self
            .sockets
            .get(socket.0)
            .filter(|record| record.phase == SocketPhase::InUse)
        else {
            return;
        };
        let key = record.key;
        self.place_open_socket(now, key, socket);
        let group_id = self.key_state_mut(key).group;
        self.serve_waiters(now, group_id);
    }

    /// Records that a connection is closed, by either side.
    pub fn socket_closed(&mut self, now: Instant, socket: SocketId) {
        let Some(&SocketRecord { phase, since, .. }) = self.sockets.get(socket.0) else {
            return;
        };
        if phase == SocketPhase::Connecting {
            return self.socket_failed(now, socket);
        }
        let removed = self.remove_socket(socket);
        // A server that accepts and drops at once would otherwise be dialled in a tight loop.
        if phase == SocketPhase::Warm && now.duration_since(since) < MIN_STABLE_AGE {
            self.limit_group_mut(removed.group).record_failure(now);
        }
        self.follow_removal(now, removed);
    }

    /// Records that a connection to be handed out was found dead and closed.
    pub fn socket_stale(&mut self, now: Instant, socket: SocketId) {
        let Some(&SocketRecord { key, .. }) = self.sockets.get(socket.0) else {
            return;
        };
        let key_state = self.key_state_mut(key);
        key_state.stale += 1;
        // The connection was counted as a hit when it was taken.
        key_state.hits = key_state.hits.saturating_sub(1);
        self.socket_closed(now, socket);
    }

    /// Returns the next waiter for a slot in the key's limit group. Holders of used connections ask
    /// before they keep one.
    pub fn next_waiter(&self, key: KeyId) -> NextWaiter {
        let Some(key_state) = self.keys.get(key.0) else {
            return NextWaiter::None;
        };
        let group = self.limit_group(key_state.group);
        // Slots that are being freed already serve all waiters.
        if group.unserved_waiters() == 0 {
            return NextWaiter::None;
        }
        // Own limits do not matter here: a freed slot may be what the waiter needs.
        match group.queue.next_servable(|_| true) {
            None => NextWaiter::None,
            Some((_, _, next)) if next == key => NextWaiter::SameKey,
            Some(_) => NextWaiter::OtherKey,
        }
    }

    /// Replaces the limits of a key. Above a lower limit, unused connections close now, and those in use
    /// when they end.
    pub fn set_limits(&mut self, now: Instant, key: KeyId, max: u32, warm: u32) {
        let Some(key_state) = self.keys.get_mut(key.0) else {
            return;
        };
        (key_state.terms.max, key_state.terms.warm) = (max, warm);
        if key_state.lifecycle == KeyLifecycle::Current {
            key_state.demand.set_max(warm);
        }
        let group_id = key_state.group;
        self.shed_unused(now, key);
        self.serve_waiters(now, group_id);
        self.request_reclaim(group_id);
        self.replenish_key(now, key);
    }

    /// Closes the unused connections of a key whose settings have changed, and keeps none.
    /// Instances that still have the key get new connections.
    pub fn retire_key(&mut self, now: Instant, key: KeyId) {
        self.end_key(now, key, KeyLifecycle::Retired);
    }

    /// Forgets a key whose last instance is gone: refuses its waiters and all later requests.
    pub fn forget_key(&mut self, now: Instant, key: KeyId) {
        let of_key = self
            .waiters
            .iter()
            .filter(|(_, waiter)| waiter.key == key)
            .map(|(ticket, _)| *ticket);
        // Collected first: refusing removes waiters.
        let of_key: Vec<_> = of_key.collect();
        of_key
            .into_iter()
            .for_each(|ticket| self.refuse_waiter(ticket, RefusalReason::KeyForgotten));
        self.end_key(now, key, KeyLifecycle::Forgotten);
        self.drop_forgotten_key(key);
    }

    /// Handles timers that are due.
    pub fn tick(&mut self, now: Instant) {
        while let Some(due) = self.timers.pop_due(now) {
            match due {
                TimerEntry::Waiter(ticket) => self.expire_waiter(now, ticket),
                TimerEntry::Key(key) => self.review_key(now, key),
            }
        }
    }

    /// Returns when [`Self::tick`] is due next.
    pub fn wake_at(&self) -> Option<Instant> {
        self.timers.next_due()
    }

    /// Returns the next action. Callers repeat it after every event until it returns `None`.
    pub fn poll(&mut self) -> Option<StateAction> {
        self.actions.pop_front()
    }

    /// Returns the figures of a key, while it is known.
    pub fn key_figures(&self, key: KeyId) -> Option<KeyFigures> {
        let key_state = self.keys.get(key.0)?;
        Some(KeyFigures {
            open: key_state.open,
            warm: key_state.warm.len() as u32,
            connecting: key_state.connecting.len() as u32,
            waiting: key_state.waiting,
            open_in_group: self.limit_group(key_state.group).open_count,
            hits: key_state.hits,
            misses: key_state.misses,
            waits: key_state.waits,
            refused: key_state.refused,
            failed: key_state.failed,
            stale: key_state.stale,
            wasted: key_state.wasted,
        })
    }

    /// Returns since when the oldest warm connection of a key is open.
    pub fn oldest_warm_since(&self, key: KeyId) -> Option<Instant> {
        let first = self.keys.get(key.0)?.warm.front()?;
        Some(self.phase_since(*first))
    }
}
