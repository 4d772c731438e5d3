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

pub use types::{Action, Answer, Asker, Figures, KeyId, SocketId, Terms, Ticket, Why};

use crate::pool::Need;
use arena::Arena;
use key_state::{Life, Rack, Socket, State};
use limit_group::{Place, YOUNG};
use timers::{Agenda, Due};
use waiters::Waiter;

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

    /// The warm connections in the order in which [`take`](Self::take) would give them.
    pub fn warm(&self, key: KeyId) -> impl Iterator<Item = SocketId> {
        self.racks.get(key.0).into_iter().flat_map(|rack| rack.warm.iter().rev().copied())
    }

    /// Whose a connection is.
    pub fn key(&self, socket: SocketId) -> Option<KeyId> {
        self.sockets.get(socket.0).map(|held| held.key)
    }

    /// A warm connection was taken without asking; one that was to be closed at the same moment, too. Else nothing has happened.
    pub fn taken(&mut self, now: Instant, socket: SocketId) {
        let Some(&Socket { key, state, .. }) = self.sockets.get(socket.0) else { return };
        let rack = self.rack_mut(key);
        match state {
            State::Warm => rack.warm.retain(|warm| *warm != socket),
            State::Closing => rack.wasted -= 1,
            State::Connecting | State::Out => return,
        }
        rack.hits += 1;
        rack.demand.asked(now);
        let at = rack.place;
        self.set(now, socket, State::Out);
        if state == State::Closing {
            self.place_mut(at).closing -= 1; // whoever was to have its room waits for another's
            self.settle(now, at);
            self.reclaim(at);
        }
        self.restock(now, key);
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
