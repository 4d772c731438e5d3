//! What is kept open: a pure state machine. No socket, no clock: time is an argument.
//!
//! Events go in (a client asks, a connection is open, failed or closed, time has passed) and [`Action`]s come out of [`Stock::poll`]. Every connection is
//! opened for one key and serves that one; it is handed out once, and never comes back once it was used.
//!
//! Connections of all keys of one place count below one ceiling: each key has its own, and opens another connection while fewer are open there, whosever they
//! are. Who finds no room waits in [`line`]: first come, first served within a function, functions in turn. Room that somebody waits for is never kept for
//! nobody: what is warm is closed, and adapters are asked for what they keep. How many are kept warm follows [`demand`]; [`place`] knows failures.
//!
//! What holds at any time: a connection is being opened for each waiter that has been granted one; a waiter is in line only while no connection of its key is
//! warm, and there is no room below its ceiling; nothing is opened for nobody while somebody waits.

mod agenda;
mod arena;
mod demand;
mod line;
mod place;
mod rack;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod wait;
mod words;

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

pub use words::{Action, Answer, Asker, Figures, KeyId, SocketId, Terms, Ticket, Why};

use crate::keeper::Need;
use agenda::{Agenda, Due};
use arena::Arena;
use place::{Place, YOUNG};
use rack::{Life, Rack, Socket, State};
use wait::Waiter;

/// All connections of a node to declared destinations.
#[derive(Debug)]
pub struct Stock {
    racks: Arena<Rack>,
    places: Arena<Place>,
    names: BTreeMap<Box<str>, u64>,
    sockets: Arena<Socket>,
    waiters: BTreeMap<Ticket, Waiter>,
    last_ticket: u64,
    agenda: Agenda,
    actions: VecDeque<Action>,
}

impl Default for Stock {
    fn default() -> Self {
        Self::new()
    }
}

impl Stock {
    /// Nothing is declared.
    pub const fn new() -> Self {
        Self {
            racks: Arena::new(),
            places: Arena::new(),
            names: BTreeMap::new(),
            sockets: Arena::new(),
            waiters: BTreeMap::new(),
            last_ticket: 0,
            agenda: Agenda::new(),
            actions: VecDeque::new(),
        }
    }

    /// A new key, whose connections go to `place`: keys with the same place count below one ceiling.
    pub fn declare(&mut self, now: Instant, place: &str, terms: Terms) -> KeyId {
        let at = match self.names.get(place) {
            Some(at) => *at,
            None => {
                let at = self.places.insert(Place::named(place));
                self.names.insert(place.into(), at);
                at
            }
        };
        let key = KeyId(self.racks.insert(Rack::new(now, at, terms)));
        self.place_mut(at).keys.insert(key);
        key
    }

    /// So many clients of this key will come soon: their instances are about to start.
    pub fn expects(&mut self, now: Instant, key: KeyId, clients: u32) {
        let Some(rack) = self.racks.get_mut(key.0) else { return };
        rack.demand.expects(now, clients);
        self.restock(now, key);
    }

    /// A warm connection, if there is one; else nothing has happened.
    pub fn take(&mut self, now: Instant, key: KeyId) -> Option<SocketId> {
        let rack = self.racks.get(key.0)?;
        let newest = *rack.warm.back()?;
        if now >= rack.expiry(self.since(newest)) {
            self.review(now, key); // then all are too old
            return None;
        }
        let rack = self.rack_mut(key);
        rack.warm.pop_back();
        rack.hits += 1;
        rack.demand.asked(now);
        self.set(now, newest, State::Out);
        self.restock(now, key);
        Some(newest)
    }

    /// A client asks for a connection that nobody has used. It waits for room until `deadline`; how long its connection may take to open is for whoever opens
    /// it to say, by [`failed`](Self::failed).
    pub fn ask(&mut self, now: Instant, key: KeyId, asker: Asker, deadline: Instant) -> Answer {
        if let Some(socket) = self.take(now, key) {
            return Answer::Take(socket);
        }
        match self.racks.get_mut(key.0) {
            Some(rack) if rack.life < Life::Forgotten => rack.demand.asked(now),
            _ => return Answer::Refused(Why::Gone),
        }
        let answer = self.enter(now, key, asker, deadline);
        self.restock(now, key);
        answer
    }

    /// A connection is open.
    pub fn connected(&mut self, now: Instant, socket: SocketId) {
        let Some(held) = self.sockets.get(socket.0).filter(|held| held.state == State::Connecting) else { return };
        let (key, took) = (held.key, now.duration_since(held.since));
        let rack = self.rack_mut(key);
        rack.connecting.remove(&socket);
        rack.demand.took(took);
        let at = rack.place;
        self.place_mut(at).works(now);
        self.shelve(now, key, socket);
        self.settle(now, at);
        self.restock(now, key);
    }

    /// The destination did not take a connection. One waiter at most learns it: each has its own try.
    pub fn failed(&mut self, now: Instant, socket: SocketId) {
        let Some(held) = self.sockets.get(socket.0) else { return };
        let tried = held.state == State::Connecting;
        let at = self.remove(socket);
        if tried {
            self.place_mut(at.place).failed(now);
            self.rack_mut(at.key).failed += 1;
        }
        let rack = self.rack(at.key);
        if rack.granted.len() > rack.connecting.len() {
            let first = *rack.granted.first().expect("more than none are granted");
            self.refuse(first, Why::Failed);
        }
        self.after(now, at);
    }

    /// A connection that was given was not used: whoever it was for has gone.
    pub fn unused(&mut self, now: Instant, socket: SocketId) {
        let Some(held) = self.sockets.get(socket.0).filter(|held| held.state == State::Out) else { return };
        let key = held.key;
        self.shelve(now, key, socket);
        let at = self.rack_mut(key).place;
        self.settle(now, at);
    }

    /// A connection is closed, whoever did it.
    pub fn closed(&mut self, now: Instant, socket: SocketId) {
        let Some(&Socket { state, since, .. }) = self.sockets.get(socket.0) else { return };
        if state == State::Connecting {
            return self.failed(now, socket);
        }
        let at = self.remove(socket);
        if state == State::Warm && now.duration_since(since) < YOUNG {
            self.place_mut(at.place).failed(now);
        }
        self.after(now, at);
    }

    /// A connection that was to be handed out is found dead, and closed.
    pub fn stale(&mut self, now: Instant, socket: SocketId) {
        let Some(&Socket { key, .. }) = self.sockets.get(socket.0) else { return };
        let rack = self.rack_mut(key);
        rack.stale += 1;
        rack.hits = rack.hits.saturating_sub(1);
        self.closed(now, socket);
    }

    /// Who is next in turn for a place where this key's connections go. Whoever keeps a used connection there asks before.
    pub fn need(&self, key: KeyId) -> Need {
        let Some(rack) = self.racks.get(key.0) else { return Need::Nobody };
        let place = self.place(rack.place);
        if place.lacking() == 0 {
            return Need::Nobody;
        }
        match place.line.next(|_| true) {
            None => Need::Nobody,
            Some((_, _, next)) if next == key => Need::Own,
            Some(_) => Need::Others,
        }
    }

    /// The settings of the key's functions have changed: what is open for nobody is closed, and nothing is kept any more. Instances that still have the key
    /// are served by new connections.
    pub fn retire(&mut self, now: Instant, key: KeyId) {
        self.end(now, key, Life::Retired);
    }

    /// The key's last instance is gone: who still waits is refused, and nobody may ask any more.
    pub fn forget(&mut self, now: Instant, key: KeyId) {
        let of_key = self.waiters.iter().filter(|(_, waiter)| waiter.key == key).map(|(ticket, _)| *ticket);
        let of_key: Vec<_> = of_key.collect();
        of_key.into_iter().for_each(|ticket| self.refuse(ticket, Why::Gone));
        self.end(now, key, Life::Forgotten);
        self.bury(key);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        while let Some(due) = self.agenda.pop(now) {
            match due {
                Due::Waiter(ticket) => self.late(now, ticket),
                Due::Key(key) => self.review(now, key),
            }
        }
    }

    /// When [`Self::tick`] is due, if ever.
    pub fn wake_at(&self) -> Option<Instant> {
        self.agenda.first()
    }

    /// What is to be done next. To be asked after every event until there is nothing.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// How a key stands, while it is known.
    pub fn figures(&self, key: KeyId) -> Option<Figures> {
        let rack = self.racks.get(key.0)?;
        Some(Figures {
            open: rack.open,
            warm: rack.warm.len() as u32,
            connecting: rack.connecting.len() as u32,
            waiting: rack.waiting,
            at_place: self.place(rack.place).open,
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
    pub fn oldest(&self, key: KeyId) -> Option<Instant> {
        let first = self.racks.get(key.0)?.warm.front()?;
        Some(self.since(*first))
    }
}

/// Whose connection is gone.
#[derive(Debug, Clone, Copy)]
struct At {
    key: KeyId,
    place: u64,
}

/// What follows from events.
impl Stock {
    /// Starts to open a connection.
    fn open(&mut self, now: Instant, key: KeyId) {
        let socket = SocketId(self.sockets.insert(Socket { key, state: State::Connecting, since: now }));
        let rack = self.rack_mut(key);
        rack.connecting.insert(socket);
        rack.open += 1;
        let at = rack.place;
        self.place_mut(at).open += 1;
        self.actions.push_back(Action::Connect(key, socket));
    }

    /// An open connection goes to the first who waits for one of its key, or is kept.
    fn shelve(&mut self, now: Instant, key: KeyId, socket: SocketId) {
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
    fn after(&mut self, now: Instant, at: At) {
        self.settle(now, at.place);
        self.reclaim(at.place);
        self.restock(now, at.key);
        self.bury(at.key);
    }

    /// Gives room to who is next in turn, makes more if that is not enough, and lets keys keep what they could not before.
    fn settle(&mut self, now: Instant, at: u64) {
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
    fn reclaim(&mut self, at: u64) {
        let place = self.place(at);
        if let Some((_, _, key)) = place.line.next(|_| true).filter(|_| place.lacking() > 0) {
            self.actions.push_back(Action::Reclaim(key));
        }
    }

    fn next(&self, at: u64) -> Option<line::Next> {
        let place = self.place(at);
        place.line.next(|key| self.rack(key).terms.max > place.open)
    }

    /// Closes one connection at a place that is there for nobody: the one that has been for longest of the key that has most.
    fn evict(&mut self, now: Instant, at: u64) -> bool {
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
    fn restock(&mut self, now: Instant, key: KeyId) {
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
    fn review(&mut self, now: Instant, key: KeyId) {
        let Some(rack) = self.racks.get_mut(key.0) else { return };
        rack.due = None;
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
    fn remind(&mut self, now: Instant, key: KeyId) {
        if let Some(since) = self.oldest(key) {
            let expiry = self.rack(key).expiry(since);
            self.remind_at(key, expiry.max(now));
        }
    }

    fn remind_at(&mut self, key: KeyId, at: Instant) {
        let Some(rack) = self.racks.get_mut(key.0) else { return };
        if rack.due.is_none_or(|due| at < due) {
            let before = rack.due.replace(at);
            self.agenda.put(Due::Key(key), before, at);
        }
    }

    /// Orders a connection closed that is in no list any more. It counts until that is done.
    fn close(&mut self, now: Instant, socket: SocketId) {
        let held = self.set(now, socket, State::Closing);
        let rack = self.rack_mut(held);
        rack.wasted += 1;
        let at = rack.place;
        self.place_mut(at).closing += 1;
        self.actions.push_back(Action::Close(socket));
    }

    fn set(&mut self, now: Instant, socket: SocketId, state: State) -> KeyId {
        let held = self.sockets.get_mut(socket.0).expect("it was found before");
        (held.state, held.since) = (state, now);
        held.key
    }

    /// Strikes a connection from all lists.
    fn remove(&mut self, socket: SocketId) -> At {
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
    fn end(&mut self, now: Instant, key: KeyId, life: Life) {
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
    fn bury(&mut self, key: KeyId) {
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

    fn since(&self, socket: SocketId) -> Instant {
        self.sockets.get(socket.0).expect("what is in a list is held").since
    }

    fn rack(&self, key: KeyId) -> &Rack {
        self.racks.get(key.0).expect("a key outlives its connections and waiters")
    }

    fn rack_mut(&mut self, key: KeyId) -> &mut Rack {
        self.racks.get_mut(key.0).expect("a key outlives its connections and waiters")
    }

    fn place(&self, at: u64) -> &Place {
        self.places.get(at).expect("a place outlives its keys")
    }

    fn place_mut(&mut self, at: u64) -> &mut Place {
        self.places.get_mut(at).expect("a place outlives its keys")
    }
}
