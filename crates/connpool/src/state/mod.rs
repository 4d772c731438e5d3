//! What is kept open: a pure state machine. No socket, no clock: time is an argument.
//!
//! Events go in (a client asks, a connection is open, failed or closed, time has passed) and [`StateAction`]s come out of [`PoolState::poll`]. Every connection is
//! opened for one key and serves that one; it is handed out once, and never comes back once it was used.
//!
//! Connections of all keys of one place count below one ceiling: each key has its own, and opens another connection while fewer are open there, whosever they
//! are. Who finds no room waits in [`line`]: first come, first served within a function, functions in turn. Room that somebody waits for is never kept for
//! nobody: what is warm is closed, and adapters are asked for what they keep. How many are kept warm follows [`demand`]; [`place`] knows failures.
//!
//! What holds at any time: a connection is being opened for each waiter that has been granted one; a waiter is in line only while no connection of its key is
//! warm, and there is no room below its ceiling; nothing is opened for nobody while somebody waits.

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
    /// Nothing is declared.
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

    /// A new key, whose connections go to `place`: keys with the same place count below one ceiling.
    pub fn declare_key(&mut self, now: Instant, place: &str, terms: KeyTerms) -> KeyId {
        let at = match self.group_ids.get(place) {
            Some(at) => *at,
            None => {
                let at = self.groups.insert(LimitGroup::with_name(place));
                self.group_ids.insert(place.into(), at);
                at
            }
        };
        let key = KeyId(self.keys.insert(KeyState::new(now, at, terms)));
        self.limit_group_mut(at).keys.insert(key);
        key
    }

    /// So many clients of this key will come soon: their instances are about to start.
    pub fn expect_clients(&mut self, now: Instant, key: KeyId, clients: u32) {
        let Some(rack) = self.keys.get_mut(key.0) else {
            return;
        };
        rack.demand.expect_clients(now, clients);
        self.replenish_key(now, key);
    }

    /// A warm connection, if there is one; else nothing has happened.
    pub fn take_warm(&mut self, now: Instant, key: KeyId) -> Option<SocketId> {
        let rack = self.keys.get(key.0)?;
        let newest = *rack.warm.back()?;
        if now >= rack.expires_at(self.phase_since(newest)) {
            self.review_key(now, key); // then all are too old
            return None;
        }
        let rack = self.key_state_mut(key);
        rack.warm.pop_back();
        rack.hits += 1;
        rack.demand.record_request(now);
        self.set_phase(now, newest, SocketPhase::InUse);
        self.replenish_key(now, key);
        Some(newest)
    }

    /// The warm connections in the order in which [`take`](Self::take) would give them.
    pub fn warm_sockets(&self, key: KeyId) -> impl Iterator<Item = SocketId> {
        self.keys
            .get(key.0)
            .into_iter()
            .flat_map(|rack| rack.warm.iter().rev().copied())
    }

    /// Whose a connection is.
    pub fn key_of(&self, socket: SocketId) -> Option<KeyId> {
        self.sockets.get(socket.0).map(|held| held.key)
    }

    /// A warm connection was taken without asking; one that was to be closed at the same moment, too. Else nothing has happened.
    pub fn confirm_taken(&mut self, now: Instant, socket: SocketId) {
        let Some(&SocketRecord {
            key, phase: state, ..
        }) = self.sockets.get(socket.0)
        else {
            return;
        };
        let rack = self.key_state_mut(key);
        match state {
            SocketPhase::Warm => rack.warm.retain(|warm| *warm != socket),
            SocketPhase::Closing => rack.wasted -= 1,
            SocketPhase::Connecting | SocketPhase::InUse => return,
        }
        rack.hits += 1;
        rack.demand.record_request(now);
        let at = rack.group;
        self.set_phase(now, socket, SocketPhase::InUse);
        if state == SocketPhase::Closing {
            self.limit_group_mut(at).closing_count -= 1; // whoever was to have its room waits for another's
            self.serve_waiters(now, at);
            self.request_reclaim(at);
        }
        self.replenish_key(now, key);
    }

    /// A client asks for a connection that nobody has used. It waits for room until `deadline`; how long its connection may take to open is for whoever opens
    /// it to say, by [`failed`](Self::failed).
    pub fn request_socket(
        &mut self,
        now: Instant,
        key: KeyId,
        asker: RequesterId,
        deadline: Instant,
    ) -> RequestOutcome {
        if let Some(socket) = self.take_warm(now, key) {
            return RequestOutcome::Take(socket);
        }
        match self.keys.get_mut(key.0) {
            Some(rack) if rack.lifecycle < KeyLifecycle::Forgotten => {
                rack.demand.record_request(now)
            }
            _ => return RequestOutcome::Refused(RefusalReason::KeyForgotten),
        }
        let answer = self.request_new(now, key, asker, deadline);
        self.replenish_key(now, key);
        answer
    }

    /// A connection is open.
    pub fn socket_connected(&mut self, now: Instant, socket: SocketId) {
        let Some(held) = self
            .sockets
            .get(socket.0)
            .filter(|held| held.phase == SocketPhase::Connecting)
        else {
            return;
        };
        let (key, took) = (held.key, now.duration_since(held.since));
        let rack = self.key_state_mut(key);
        rack.connecting.remove(&socket);
        rack.demand.record_connect_time(took);
        let at = rack.group;
        self.limit_group_mut(at).record_success(now);
        self.place_open_socket(now, key, socket);
        self.serve_waiters(now, at);
        self.replenish_key(now, key);
    }

    /// The destination did not take a connection. One waiter at most learns it: each has its own try.
    pub fn socket_failed(&mut self, now: Instant, socket: SocketId) {
        let Some(held) = self.sockets.get(socket.0) else {
            return;
        };
        let tried = held.phase == SocketPhase::Connecting;
        let at = self.remove_socket(socket);
        if tried {
            self.limit_group_mut(at.group).record_failure(now);
            self.key_state_mut(at.key).failed += 1;
        }
        let rack = self.key_state(at.key);
        if rack.granted.len() > rack.connecting.len() {
            let first = *rack.granted.first().expect("more than none are granted");
            self.refuse_waiter(first, RefusalReason::Failed);
        }
        self.follow_removal(now, at);
    }

    /// A connection that was given was not used: whoever it was for has gone.
    pub fn socket_unused(&mut self, now: Instant, socket: SocketId) {
        let Some(held) = self
            .sockets
            .get(socket.0)
            .filter(|held| held.phase == SocketPhase::InUse)
        else {
            return;
        };
        let key = held.key;
        self.place_open_socket(now, key, socket);
        let at = self.key_state_mut(key).group;
        self.serve_waiters(now, at);
    }

    /// A connection is closed, whoever did it.
    pub fn socket_closed(&mut self, now: Instant, socket: SocketId) {
        let Some(&SocketRecord {
            phase: state,
            since,
            ..
        }) = self.sockets.get(socket.0)
        else {
            return;
        };
        if state == SocketPhase::Connecting {
            return self.socket_failed(now, socket);
        }
        let at = self.remove_socket(socket);
        if state == SocketPhase::Warm && now.duration_since(since) < MIN_STABLE_AGE {
            self.limit_group_mut(at.group).record_failure(now);
        }
        self.follow_removal(now, at);
    }

    /// A connection that was to be handed out is found dead, and closed.
    pub fn socket_stale(&mut self, now: Instant, socket: SocketId) {
        let Some(&SocketRecord { key, .. }) = self.sockets.get(socket.0) else {
            return;
        };
        let rack = self.key_state_mut(key);
        rack.stale += 1;
        rack.hits = rack.hits.saturating_sub(1);
        self.socket_closed(now, socket);
    }

    /// Who is next in turn for a place where this key's connections go. Whoever keeps a used connection there asks before.
    pub fn next_waiter(&self, key: KeyId) -> NextWaiter {
        let Some(rack) = self.keys.get(key.0) else {
            return NextWaiter::None;
        };
        let place = self.limit_group(rack.group);
        if place.unserved_waiters() == 0 {
            return NextWaiter::None;
        }
        match place.queue.next_servable(|_| true) {
            None => NextWaiter::None,
            Some((_, _, next)) if next == key => NextWaiter::SameKey,
            Some(_) => NextWaiter::OtherKey,
        }
    }

    /// The settings of the key's functions have changed: what is open for nobody is closed, and nothing is kept any more. Instances that still have the key
    /// are served by new connections.
    pub fn retire_key(&mut self, now: Instant, key: KeyId) {
        self.end_key(now, key, KeyLifecycle::Retired);
    }

    /// The key's last instance is gone: who still waits is refused, and nobody may ask any more.
    pub fn forget_key(&mut self, now: Instant, key: KeyId) {
        let of_key = self
            .waiters
            .iter()
            .filter(|(_, waiter)| waiter.key == key)
            .map(|(ticket, _)| *ticket);
        let of_key: Vec<_> = of_key.collect();
        of_key
            .into_iter()
            .for_each(|ticket| self.refuse_waiter(ticket, RefusalReason::KeyForgotten));
        self.end_key(now, key, KeyLifecycle::Forgotten);
        self.drop_forgotten_key(key);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        while let Some(due) = self.timers.pop_due(now) {
            match due {
                TimerEntry::Waiter(ticket) => self.expire_waiter(now, ticket),
                TimerEntry::Key(key) => self.review_key(now, key),
            }
        }
    }

    /// When [`Self::tick`] is due, if ever.
    pub fn wake_at(&self) -> Option<Instant> {
        self.timers.next_due()
    }

    /// What is to be done next. To be asked after every event until there is nothing.
    pub fn poll(&mut self) -> Option<StateAction> {
        self.actions.pop_front()
    }

    /// How a key stands, while it is known.
    pub fn key_figures(&self, key: KeyId) -> Option<KeyFigures> {
        let rack = self.keys.get(key.0)?;
        Some(KeyFigures {
            open: rack.open,
            warm: rack.warm.len() as u32,
            connecting: rack.connecting.len() as u32,
            waiting: rack.waiting,
            open_in_group: self.limit_group(rack.group).open_count,
            hits: rack.hits,
            misses: rack.misses,
            waits: rack.waits,
            refused: rack.refused,
            failed: rack.failed,
            stale: rack.stale,
            wasted: rack.wasted,
        })
    }

    /// Since when the oldest warm connection of a key is open.
    pub fn oldest_warm_since(&self, key: KeyId) -> Option<Instant> {
        let first = self.keys.get(key.0)?.warm.front()?;
        Some(self.phase_since(*first))
    }
}
