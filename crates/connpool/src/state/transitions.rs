//! What follows from events: who is served, what is opened and what is closed.

use std::time::Instant;

use super::PoolState;
use super::key_state::{KeyLifecycle, KeyState, SocketPhase, SocketRecord};
use super::limit_group::LimitGroup;
use super::timers::TimerEntry;
use super::types::{KeyId, SocketId, StateAction};
use super::wait_queue::QueuedRequest;

/// Whose connection is gone.
#[derive(Debug, Clone, Copy)]
pub(super) struct RemovedFrom {
    pub(super) key: KeyId,
    pub(super) group: u64,
}

impl PoolState {
    /// Starts to open a connection.
    pub(super) fn start_connect(&mut self, now: Instant, key: KeyId) {
        let socket = SocketId(self.sockets.insert(SocketRecord {
            key,
            phase: SocketPhase::Connecting,
            since: now,
        }));
        let rack = self.key_state_mut(key);
        rack.connecting.insert(socket);
        rack.open += 1;
        let at = rack.group;
        self.limit_group_mut(at).open_count += 1;
        self.actions.push_back(StateAction::Connect(key, socket));
    }

    /// An open connection goes to the first who waits for one of its key, or is kept.
    pub(super) fn place_open_socket(&mut self, now: Instant, key: KeyId, socket: SocketId) {
        let rack = self.key_state_mut(key);
        let at = rack.group;
        if let Some(ticket) = rack.granted.first().copied() {
            return self.give_socket(now, ticket, socket);
        }
        if let Some((_, ticket, _)) = self
            .limit_group(at)
            .queue
            .next_servable(|other| other == key)
        {
            return self.give_socket(now, ticket, socket);
        }
        let rack = self.key_state_mut(key);
        if rack.lifecycle > KeyLifecycle::Current || rack.warm.len() >= rack.terms.warm as usize {
            return self.close_socket(now, socket);
        }
        rack.warm.push_back(socket);
        self.set_phase(now, socket, SocketPhase::Warm);
        self.schedule_expiry(now, key);
    }

    /// After a connection is gone: its room is for who waits, then for what is kept.
    pub(super) fn follow_removal(&mut self, now: Instant, at: RemovedFrom) {
        self.serve_waiters(now, at.group);
        self.request_reclaim(at.group);
        self.replenish_key(now, at.key);
        self.drop_forgotten_key(at.key);
    }

    /// Gives room to who is next in turn, makes more if that is not enough, and lets keys keep what they could not before.
    pub(super) fn serve_waiters(&mut self, now: Instant, at: u64) {
        while let Some(next) = self.next_grantable(at) {
            self.limit_group_mut(at).queue.mark_served(next);
            self.grant_connect(now, next.1);
        }
        while self.limit_group(at).unserved_waiters() > 0 && self.evict_unused(now, at) {}
        if !self.limit_group(at).queue.is_empty() {
            return;
        }
        let hungry = std::mem::take(&mut self.limit_group_mut(at).starved_keys);
        hungry
            .into_iter()
            .for_each(|key| self.replenish_key(now, key));
    }

    /// Asks adapters for room, if somebody waits whom nothing else helps.
    pub(super) fn request_reclaim(&mut self, at: u64) {
        let place = self.limit_group(at);
        if let Some((_, _, key)) = place
            .queue
            .next_servable(|_| true)
            .filter(|_| place.unserved_waiters() > 0)
        {
            self.actions.push_back(StateAction::Reclaim(key));
        }
    }

    pub(super) fn next_grantable(&self, at: u64) -> Option<QueuedRequest> {
        let place = self.limit_group(at);
        place
            .queue
            .next_servable(|key| self.key_state(key).terms.max > place.open_count)
    }

    /// Closes one connection at a place that is there for nobody: the one that has been for longest of the key that has most.
    pub(super) fn evict_unused(&mut self, now: Instant, at: u64) -> bool {
        let spares = |key: &&KeyId| {
            let rack = self.key_state(**key);
            rack.warm.len() + rack.unassigned_connects()
        };
        let Some(key) = self.limit_group(at).keys.iter().max_by_key(spares).copied() else {
            return false;
        };
        let rack = self.key_state_mut(key);
        let socket = match rack.warm.pop_front() {
            Some(socket) => socket,
            None if rack.unassigned_connects() > 0 => rack
                .connecting
                .pop_last()
                .expect("what is spare is being opened"),
            None => return false,
        };
        self.close_socket(now, socket);
        true
    }

    /// Opens what is worth keeping, as far as there is room and nobody waits.
    pub(super) fn replenish_key(&mut self, now: Instant, key: KeyId) {
        let Some(rack) = self.keys.get_mut(key.0) else {
            return;
        };
        let (mut lacks, max, at) = (rack.missing_warm(now), rack.terms.max, rack.group);
        let place = self.limit_group(at);
        if let Some(retry) = place.paused_until(now).filter(|_| lacks > 0) {
            return self.schedule_review(key, retry);
        }
        if place.is_failing() {
            lacks = lacks.min(usize::from(self.key_state(key).connecting.is_empty())); // one is enough to see
        }
        while lacks > 0 {
            let place = self.limit_group_mut(at);
            if place.open_count >= max || !place.queue.is_empty() {
                place.starved_keys.insert(key);
                return;
            }
            self.start_connect(now, key);
            lacks -= 1;
        }
    }

    /// Its time has come: what is too old goes, what is wanted comes.
    pub(super) fn review_key(&mut self, now: Instant, key: KeyId) {
        let Some(rack) = self.keys.get_mut(key.0) else {
            return;
        };
        self.timers
            .cancel_timer(TimerEntry::Key(key), rack.review_at.take());
        while let Some(first) = self.key_state(key).warm.front().copied() {
            if now < self.key_state(key).expires_at(self.phase_since(first)) {
                break;
            }
            self.key_state_mut(key).warm.pop_front();
            self.close_socket(now, first);
        }
        self.replenish_key(now, key);
        self.schedule_expiry(now, key);
    }

    /// Sees to it that the key is looked at when its oldest warm connection is too old.
    pub(super) fn schedule_expiry(&mut self, now: Instant, key: KeyId) {
        if let Some(since) = self.oldest_warm_since(key) {
            let expiry = self.key_state(key).expires_at(since);
            self.schedule_review(key, expiry.max(now));
        }
    }

    pub(super) fn schedule_review(&mut self, key: KeyId, at: Instant) {
        let Some(rack) = self.keys.get_mut(key.0) else {
            return;
        };
        if rack.review_at.is_none_or(|due| at < due) {
            let before = rack.review_at.replace(at);
            self.timers.schedule(TimerEntry::Key(key), before, at);
        }
    }

    /// Orders a connection closed that is in no list any more. It counts until that is done.
    pub(super) fn close_socket(&mut self, now: Instant, socket: SocketId) {
        let held = self.set_phase(now, socket, SocketPhase::Closing);
        let rack = self.key_state_mut(held);
        rack.wasted += 1;
        let at = rack.group;
        self.limit_group_mut(at).closing_count += 1;
        self.actions.push_back(StateAction::Close(socket));
    }

    pub(super) fn set_phase(
        &mut self,
        now: Instant,
        socket: SocketId,
        state: SocketPhase,
    ) -> KeyId {
        let held = self.sockets.get_mut(socket.0).expect("it was found before");
        (held.phase, held.since) = (state, now);
        held.key
    }

    /// Strikes a connection from all lists.
    pub(super) fn remove_socket(&mut self, socket: SocketId) -> RemovedFrom {
        let SocketRecord {
            key, phase: state, ..
        } = self.sockets.remove(socket.0).expect("it was found before");
        let rack = self.key_state_mut(key);
        rack.open -= 1;
        match state {
            SocketPhase::Connecting => drop(rack.connecting.remove(&socket)),
            SocketPhase::Warm => rack.warm.retain(|warm| *warm != socket),
            SocketPhase::InUse | SocketPhase::Closing => {}
        }
        let at = rack.group;
        let place = self.limit_group_mut(at);
        place.open_count -= 1;
        place.closing_count -= u32::from(state == SocketPhase::Closing);
        RemovedFrom { key, group: at }
    }

    /// Nothing of this key is kept any more.
    pub(super) fn end_key(&mut self, now: Instant, key: KeyId, life: KeyLifecycle) {
        let Some(rack) = self.keys.get_mut(key.0) else {
            return;
        };
        rack.lifecycle = rack.lifecycle.max(life);
        rack.demand.stop();
        let mut close: Vec<_> = rack.warm.drain(..).collect();
        while rack.unassigned_connects() > 0 {
            close.extend(rack.connecting.pop_last());
        }
        let at = rack.group;
        close
            .into_iter()
            .for_each(|socket| self.close_socket(now, socket));
        self.serve_waiters(now, at);
    }

    /// Strikes a key from all lists once it is forgotten and has no connection left, and its place with its last key.
    pub(super) fn drop_forgotten_key(&mut self, key: KeyId) {
        let Some(rack) = self
            .keys
            .get(key.0)
            .filter(|rack| rack.lifecycle == KeyLifecycle::Forgotten && rack.open == 0)
        else {
            return;
        };
        let (at, due) = (rack.group, rack.review_at);
        self.timers.cancel_timer(TimerEntry::Key(key), due);
        self.keys.remove(key.0);
        let place = self.limit_group_mut(at);
        place.keys.remove(&key);
        place.starved_keys.remove(&key);
        if place.keys.is_empty() {
            let place = self.groups.remove(at).expect("it was found before");
            self.group_ids.remove(&place.name);
        }
    }

    pub(super) fn phase_since(&self, socket: SocketId) -> Instant {
        self.sockets
            .get(socket.0)
            .expect("what is in a list is held")
            .since
    }

    pub(super) fn key_state(&self, key: KeyId) -> &KeyState {
        self.keys
            .get(key.0)
            .expect("a key outlives its connections and waiters")
    }

    pub(super) fn key_state_mut(&mut self, key: KeyId) -> &mut KeyState {
        self.keys
            .get_mut(key.0)
            .expect("a key outlives its connections and waiters")
    }

    pub(super) fn limit_group(&self, at: u64) -> &LimitGroup {
        self.groups.get(at).expect("a place outlives its keys")
    }

    pub(super) fn limit_group_mut(&mut self, at: u64) -> &mut LimitGroup {
        self.groups.get_mut(at).expect("a place outlives its keys")
    }
}
