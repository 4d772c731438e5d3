//! Consequences of events: who is served, what is opened and what is closed.

use std::time::Instant;

use super::PoolState;
use super::key_state::{KeyLifecycle, KeyState, SocketPhase, SocketRecord};
use super::limit_group::LimitGroup;
use super::timers::TimerEntry;
use super::types::{KeyId, SocketId, StateAction};
use super::wait_queue::QueuedRequest;

/// Key and group of a removed connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct RemovedFrom {
    pub(super) key: KeyId,
    pub(super) group: u64,
}

impl PoolState {
    /// Starts a connect.
    pub(super) fn start_connect(&mut self, now: Instant, key: KeyId) {
        let socket = SocketId(self.sockets.insert(SocketRecord {
            key,
            phase: SocketPhase::Connecting,
            since: now,
        }));
        let key_state = self.key_state_mut(key);
        key_state.connecting.insert(socket);
        key_state.open += 1;
        let group_id = key_state.group;
        self.limit_group_mut(group_id).open_count += 1;
        self.actions.push_back(StateAction::Connect(key, socket));
    }

    /// Gives an open connection to the first waiter of its key, or keeps it warm.
    pub(super) fn place_open_socket(&mut self, now: Instant, key: KeyId, socket: SocketId) {
        let key_state = self.key_state_mut(key);
        let group_id = key_state.group;
        // Granted waiters first: any connection of the key serves the one granted longest.
        if let Some(ticket) = key_state.granted.first().copied() {
            return self.give_socket(now, ticket, socket);
        }
        // Then queued ones: the connection is open, so no slot is needed.
        if let Some((_, ticket, _)) = self
            .limit_group(group_id)
            .queue
            .next_servable(|other| other == key)
        {
            return self.give_socket(now, ticket, socket);
        }
        let key_state = self.key_state_mut(key);
        if key_state.lifecycle > KeyLifecycle::Current
            || key_state.warm.len() >= key_state.terms.warm as usize
        {
            return self.close_socket(now, socket);
        }
        key_state.warm.push_back(socket);
        self.set_phase(now, socket, SocketPhase::Warm);
        self.schedule_expiry(now, key);
    }

    /// After a removal: gives the free slot to a waiter, or replenishes the key.
    pub(super) fn follow_removal(&mut self, now: Instant, removed: RemovedFrom) {
        // In order of priority: waiters, idle connections of adapters, warm connections. Last, the
        // key may be dropped.
        self.serve_waiters(now, removed.group);
        self.request_reclaim(removed.group);
        self.replenish_key(now, removed.key);
        self.drop_forgotten_key(removed.key);
    }

    /// Grants slots to the next waiters, frees more if needed, and replenishes keys that lacked
    /// slots.
    pub(super) fn serve_waiters(&mut self, now: Instant, group_id: u64) {
        while let Some(next) = self.next_grantable(group_id) {
            self.limit_group_mut(group_id).queue.mark_served(next);
            self.grant_connect(now, next.1);
        }
        // Closing takes time, so no more than the waiters still need.
        while self.limit_group(group_id).unserved_waiters() > 0 && self.evict_unused(now, group_id)
        {
        }
        // Connections ahead of use are opened only when no client waits.
        if !self.limit_group(group_id).queue.is_empty() {
            return;
        }
        // Taken out first: replenishing may add keys again.
        let starved = std::mem::take(&mut self.limit_group_mut(group_id).starved_keys);
        starved
            .into_iter()
            .for_each(|key| self.replenish_key(now, key));
    }

    /// Asks adapters for a slot if a waiter remains that nothing else serves.
    pub(super) fn request_reclaim(&mut self, group_id: u64) {
        let group = self.limit_group(group_id);
        if let Some((_, _, key)) = group
            .queue
            .next_servable(|_| true)
            .filter(|_| group.unserved_waiters() > 0)
        {
            self.actions.push_back(StateAction::Reclaim(key));
        }
    }

    pub(super) fn next_grantable(&self, group_id: u64) -> Option<QueuedRequest> {
        let group = self.limit_group(group_id);
        // A waiter below its own limit may pass one whose limit is lower.
        group
            .queue
            .next_servable(|key| self.key_state(key).terms.max > group.open_count)
    }

    /// Closes one unused connection of a group: the oldest of the key that has most.
    pub(super) fn evict_unused(&mut self, now: Instant, group_id: u64) -> bool {
        let unused_count = |key: &&KeyId| {
            let key_state = self.key_state(**key);
            key_state.warm.len() + key_state.unassigned_connects()
        };
        let Some(key) = self
            .limit_group(group_id)
            .keys
            .iter()
            .max_by_key(unused_count)
            .copied()
        else {
            return false;
        };
        let socket = self.take_unused(key);
        let closing = socket.map(|socket| self.close_socket(now, socket));
        closing.is_some()
    }

    /// Closes unused connections of a key above its limits, and asks adapters for idle ones.
    pub(super) fn shed_unused(&mut self, now: Instant, key: KeyId) {
        let key_state = self.key_state(key);
        let (max, max_warm) = (key_state.terms.max, key_state.terms.warm as usize);
        let group_id = key_state.group;
        let excess = |state: &Self| {
            let group = state.limit_group(group_id);
            (group.open_count - group.closing_count).saturating_sub(max)
        };
        while self.key_state(key).warm.len() > max_warm || excess(self) > 0 {
            let Some(socket) = self.take_unused(key) else {
                break;
            };
            self.close_socket(now, socket);
        }
        // Used connections that an adapter keeps idle: each request closes one, if there is one.
        for _ in 0..excess(self) {
            self.actions.push_back(StateAction::Reclaim(key));
        }
    }

    /// Takes the unused connection of a key that is missed least: the oldest warm one, else the newest
    /// connect, which has made the least progress.
    fn take_unused(&mut self, key: KeyId) -> Option<SocketId> {
        let key_state = self.key_state_mut(key);
        let oldest = key_state.warm.pop_front();
        oldest.or_else(|| match key_state.unassigned_connects() {
            0 => None,
            _ => key_state.connecting.pop_last(),
        })
    }

    /// Opens connections ahead of use, as far as slots are free and no client waits.
    pub(super) fn replenish_key(&mut self, now: Instant, key: KeyId) {
        let Some(key_state) = self.keys.get_mut(key.0) else {
            return;
        };
        let (mut missing, max, group_id) = (
            key_state.missing_warm(now),
            key_state.terms.max,
            key_state.group,
        );
        let group = self.limit_group(group_id);
        // After a failure the timer tries again.
        if let Some(retry) = group.paused_until(now).filter(|_| missing > 0) {
            return self.schedule_review(key, retry);
        }
        if group.is_failing() {
            // A single attempt shows whether the destination accepts again.
            missing = missing.min(usize::from(self.key_state(key).connecting.is_empty()));
        }
        while missing > 0 {
            let group = self.limit_group_mut(group_id);
            // Remembered, because a freed slot replenishes only starved keys.
            if group.open_count >= max || !group.queue.is_empty() {
                group.starved_keys.insert(key);
                return;
            }
            self.start_connect(now, key);
            missing -= 1;
        }
    }

    /// Closes expired connections and replenishes the key.
    pub(super) fn review_key(&mut self, now: Instant, key: KeyId) {
        let Some(key_state) = self.keys.get_mut(key.0) else {
            return;
        };
        // The timer has fired or is replaced below.
        self.timers
            .cancel_timer(TimerEntry::Key(key), key_state.review_at.take());
        // The oldest is in front, so the first one that is young enough ends the search.
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

    /// Schedules a review for when the oldest warm connection expires.
    pub(super) fn schedule_expiry(&mut self, now: Instant, key: KeyId) {
        if let Some(since) = self.oldest_warm_since(key) {
            let expiry = self.key_state(key).expires_at(since);
            // Never in the past, so that the driver does not see a missed timer.
            self.schedule_review(key, expiry.max(now));
        }
    }

    pub(super) fn schedule_review(&mut self, key: KeyId, at: Instant) {
        let Some(key_state) = self.keys.get_mut(key.0) else {
            return;
        };
        // A later time needs no timer of its own: the earlier review schedules it.
        if key_state.review_at.is_none_or(|due| at < due) {
            let before = key_state.review_at.replace(at);
            self.timers.schedule(TimerEntry::Key(key), before, at);
        }
    }

    /// Requests the close of a connection that is in no list any more. It counts until it is
    /// closed.
    pub(super) fn close_socket(&mut self, now: Instant, socket: SocketId) {
        let key = self.set_phase(now, socket, SocketPhase::Closing);
        let key_state = self.key_state_mut(key);
        // Only unused connections are closed here.
        key_state.wasted += 1;
        let group_id = key_state.group;
        self.limit_group_mut(group_id).closing_count += 1;
        self.actions.push_back(StateAction::Close(socket));
    }

    pub(super) fn set_phase(
        &mut self,
        now: Instant,
        socket: SocketId,
        phase: SocketPhase,
    ) -> KeyId {
        let record = self.sockets.get_mut(socket.0).expect("the id is valid");
        (record.phase, record.since) = (phase, now);
        record.key
    }

    /// Removes a connection from all lists.
    pub(super) fn remove_socket(&mut self, socket: SocketId) -> RemovedFrom {
        let SocketRecord { key, phase, .. } =
            self.sockets.remove(socket.0).expect("the id is valid");
        let key_state = self.key_state_mut(key);
        key_state.open -= 1;
        match phase {
            SocketPhase::Connecting => drop(key_state.connecting.remove(&socket)),
            SocketPhase::Warm => key_state.warm.retain(|warm| *warm != socket),
            SocketPhase::InUse | SocketPhase::Closing => {}
        }
        let group_id = key_state.group;
        let group = self.limit_group_mut(group_id);
        group.open_count -= 1;
        group.closing_count -= u32::from(phase == SocketPhase::Closing);
        RemovedFrom {
            key,
            group: group_id,
        }
    }

    /// Stops keeping connections of a key.
    pub(super) fn end_key(&mut self, now: Instant, key: KeyId, lifecycle: KeyLifecycle) {
        let Some(key_state) = self.keys.get_mut(key.0) else {
            return;
        };
        // Phases only advance: a forgotten key does not become retired.
        key_state.lifecycle = key_state.lifecycle.max(lifecycle);
        key_state.demand.stop();
        // Collected first: closing borrows the whole state.
        let mut close: Vec<_> = key_state.warm.drain(..).collect();
        // Connects for granted waiters continue; only surplus ones are aborted.
        while key_state.unassigned_connects() > 0 {
            close.extend(key_state.connecting.pop_last());
        }
        let group_id = key_state.group;
        close
            .into_iter()
            .for_each(|socket| self.close_socket(now, socket));
        self.serve_waiters(now, group_id);
    }

    /// Removes a forgotten key that has no connection left, and its group with the last key.
    pub(super) fn drop_forgotten_key(&mut self, key: KeyId) {
        let Some(key_state) = self.keys.get(key.0).filter(|key_state| {
            key_state.lifecycle == KeyLifecycle::Forgotten && key_state.open == 0
        }) else {
            return;
        };
        let (group_id, due) = (key_state.group, key_state.review_at);
        self.timers.cancel_timer(TimerEntry::Key(key), due);
        self.keys.remove(key.0);
        let group = self.limit_group_mut(group_id);
        group.keys.remove(&key);
        group.starved_keys.remove(&key);
        // Without keys no client can ask for the group again under this id.
        if group.keys.is_empty() {
            let group = self.groups.remove(group_id).expect("the id is valid");
            self.group_ids.remove(&group.name);
        }
    }

    pub(super) fn phase_since(&self, socket: SocketId) -> Instant {
        self.sockets
            .get(socket.0)
            .expect("a listed connection has a record")
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

    pub(super) fn limit_group(&self, group_id: u64) -> &LimitGroup {
        self.groups
            .get(group_id)
            .expect("a group outlives its keys")
    }

    pub(super) fn limit_group_mut(&mut self, group_id: u64) -> &mut LimitGroup {
        self.groups
            .get_mut(group_id)
            .expect("a group outlives its keys")
    }
}
