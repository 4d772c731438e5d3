//! What follows from events: who is served, what is opened and what is closed.

use std::time::Instant;

use super::Stock;
use super::key_state::{Life, Rack, Socket, State};
use super::limit_group::Place;
use super::timers::Due;
use super::types::{Action, KeyId, SocketId};
use super::wait_queue::Next;

/// Whose connection is gone.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub(super) key: KeyId,
    pub(super) place: u64,
}

impl Stock {
    /// Starts to open a connection.
    pub(super) fn open(&mut self, now: Instant, key: KeyId) {
        let socket = SocketId(self.sockets.insert(Socket { key, state: State::Connecting, since: now }));
        let rack = self.rack_mut(key);
        rack.connecting.insert(socket);
        rack.open += 1;
        let at = rack.place;
        self.place_mut(at).open += 1;
        self.actions.push_back(Action::Connect(key, socket));
    }

    /// An open connection goes to the first who waits for one of its key, or is kept.
    pub(super) fn shelve(&mut self, now: Instant, key: KeyId, socket: SocketId) {
        let rack = self.rack_mut(key);
        let at = rack.place;
        if let Some(ticket) = rack.granted.first().copied() {
            return self.give(now, ticket, socket);
        }
        if let Some((_, ticket, _)) = self.place(at).line.next(|other| other == key) {
            return self.give(now, ticket, socket);
        }
        let rack = self.rack_mut(key);
        if rack.life > Life::Current || rack.warm.len() >= rack.terms.warm as usize {
            return self.close(now, socket);
        }
        rack.warm.push_back(socket);
        self.set(now, socket, State::Warm);
        self.remind(now, key);
    }

    /// After a connection is gone: its room is for who waits, then for what is kept.
    pub(super) fn after(&mut self, now: Instant, at: At) {
        self.settle(now, at.place);
        self.reclaim(at.place);
        self.restock(now, at.key);
        self.bury(at.key);
    }

    /// Gives room to who is next in turn, makes more if that is not enough, and lets keys keep what they could not before.
    pub(super) fn settle(&mut self, now: Instant, at: u64) {
        while let Some(next) = self.next(at) {
            self.place_mut(at).line.serve(next);
            self.grant(now, next.1);
        }
        while self.place(at).lacking() > 0 && self.evict(now, at) {}
        if !self.place(at).line.is_empty() {
            return;
        }
        let hungry = std::mem::take(&mut self.place_mut(at).hungry);
        hungry.into_iter().for_each(|key| self.restock(now, key));
    }

    /// Asks adapters for room, if somebody waits whom nothing else helps.
    pub(super) fn reclaim(&mut self, at: u64) {
        let place = self.place(at);
        if let Some((_, _, key)) = place.line.next(|_| true).filter(|_| place.lacking() > 0) {
            self.actions.push_back(Action::Reclaim(key));
        }
    }

    pub(super) fn next(&self, at: u64) -> Option<Next> {
        let place = self.place(at);
        place.line.next(|key| self.rack(key).terms.max > place.open)
    }

    /// Closes one connection at a place that is there for nobody: the one that has been for longest of the key that has most.
    pub(super) fn evict(&mut self, now: Instant, at: u64) -> bool {
        let spares = |key: &&KeyId| {
            let rack = self.rack(**key);
            rack.warm.len() + rack.spare()
        };
        let Some(key) = self.place(at).keys.iter().max_by_key(spares).copied() else { return false };
        let rack = self.rack_mut(key);
        let socket = match rack.warm.pop_front() {
            Some(socket) => socket,
            None if rack.spare() > 0 => rack.connecting.pop_last().expect("what is spare is being opened"),
            None => return false,
        };
        self.close(now, socket);
        true
    }

    /// Opens what is worth keeping, as far as there is room and nobody waits.
    pub(super) fn restock(&mut self, now: Instant, key: KeyId) {
        let Some(rack) = self.racks.get_mut(key.0) else { return };
        let (mut lacks, max, at) = (rack.lacks(now), rack.terms.max, rack.place);
        let place = self.place(at);
        if let Some(retry) = place.pause(now).filter(|_| lacks > 0) {
            return self.remind_at(key, retry);
        }
        if place.is_failing() {
            lacks = lacks.min(usize::from(self.rack(key).connecting.is_empty())); // one is enough to see
        }
        while lacks > 0 {
            let place = self.place_mut(at);
            if place.open >= max || !place.line.is_empty() {
                place.hungry.insert(key);
                return;
            }
            self.open(now, key);
            lacks -= 1;
        }
    }

    /// Its time has come: what is too old goes, what is wanted comes.
    pub(super) fn review(&mut self, now: Instant, key: KeyId) {
        let Some(rack) = self.racks.get_mut(key.0) else { return };
        self.agenda.take(Due::Key(key), rack.due.take());
        while let Some(first) = self.rack(key).warm.front().copied() {
            if now < self.rack(key).expiry(self.since(first)) {
                break;
            }
            self.rack_mut(key).warm.pop_front();
            self.close(now, first);
        }
        self.restock(now, key);
        self.remind(now, key);
    }

    /// Sees to it that the key is looked at when its oldest warm connection is too old.
    pub(super) fn remind(&mut self, now: Instant, key: KeyId) {
        if let Some(since) = self.oldest(key) {
            let expiry = self.rack(key).expiry(since);
            self.remind_at(key, expiry.max(now));
        }
    }

    pub(super) fn remind_at(&mut self, key: KeyId, at: Instant) {
        let Some(rack) = self.racks.get_mut(key.0) else { return };
        if rack.due.is_none_or(|due| at < due) {
            let before = rack.due.replace(at);
            self.agenda.put(Due::Key(key), before, at);
        }
    }

    /// Orders a connection closed that is in no list any more. It counts until that is done.
    pub(super) fn close(&mut self, now: Instant, socket: SocketId) {
        let held = self.set(now, socket, State::Closing);
        let rack = self.rack_mut(held);
        rack.wasted += 1;
        let at = rack.place;
        self.place_mut(at).closing += 1;
        self.actions.push_back(Action::Close(socket));
    }

    pub(super) fn set(&mut self, now: Instant, socket: SocketId, state: State) -> KeyId {
        let held = self.sockets.get_mut(socket.0).expect("it was found before");
        (held.state, held.since) = (state, now);
        held.key
    }

    /// Strikes a connection from all lists.
    pub(super) fn remove(&mut self, socket: SocketId) -> At {
        let Socket { key, state, .. } = self.sockets.remove(socket.0).expect("it was found before");
        let rack = self.rack_mut(key);
        rack.open -= 1;
        match state {
            State::Connecting => drop(rack.connecting.remove(&socket)),
            State::Warm => rack.warm.retain(|warm| *warm != socket),
            State::Out | State::Closing => {}
        }
        let at = rack.place;
        let place = self.place_mut(at);
        place.open -= 1;
        place.closing -= u32::from(state == State::Closing);
        At { key, place: at }
    }

    /// Nothing of this key is kept any more.
    pub(super) fn end(&mut self, now: Instant, key: KeyId, life: Life) {
        let Some(rack) = self.racks.get_mut(key.0) else { return };
        rack.life = rack.life.max(life);
        rack.demand.stop();
        let mut close: Vec<_> = rack.warm.drain(..).collect();
        while rack.spare() > 0 {
            close.extend(rack.connecting.pop_last());
        }
        let at = rack.place;
        close.into_iter().for_each(|socket| self.close(now, socket));
        self.settle(now, at);
    }

    /// Strikes a key from all lists once it is forgotten and has no connection left, and its place with its last key.
    pub(super) fn bury(&mut self, key: KeyId) {
        let Some(rack) = self.racks.get(key.0).filter(|rack| rack.life == Life::Forgotten && rack.open == 0) else {
            return;
        };
        let (at, due) = (rack.place, rack.due);
        self.agenda.take(Due::Key(key), due);
        self.racks.remove(key.0);
        let place = self.place_mut(at);
        place.keys.remove(&key);
        place.hungry.remove(&key);
        if place.keys.is_empty() {
            let place = self.places.remove(at).expect("it was found before");
            self.names.remove(&place.name);
        }
    }

    pub(super) fn since(&self, socket: SocketId) -> Instant {
        self.sockets.get(socket.0).expect("what is in a list is held").since
    }

    pub(super) fn rack(&self, key: KeyId) -> &Rack {
        self.racks.get(key.0).expect("a key outlives its connections and waiters")
    }

    pub(super) fn rack_mut(&mut self, key: KeyId) -> &mut Rack {
        self.racks.get_mut(key.0).expect("a key outlives its connections and waiters")
    }

    pub(super) fn place(&self, at: u64) -> &Place {
        self.places.get(at).expect("a place outlives its keys")
    }

    pub(super) fn place_mut(&mut self, at: u64) -> &mut Place {
        self.places.get_mut(at).expect("a place outlives its keys")
    }
}
