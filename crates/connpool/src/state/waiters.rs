//! Those who wait: in line for room, then for the connection that is being opened for them.

use std::time::Instant;

use super::Stock;
use super::key_state::State;
use super::timers::Due;
use super::types::{Action, Answer, Asker, KeyId, SocketId, Ticket, Why};

/// Most waiters in line of one function at one place: what asks faster than that has lost its senses.
const MOST: usize = 1_024;

/// One who waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) key: KeyId,
    asker: Asker,
    deadline: Instant,
}

impl Stock {
    /// A waiter does not want a connection any more. False: it has been given one, or was refused.
    pub fn cancel(&mut self, now: Instant, ticket: Ticket) -> bool {
        let Some(waiter) = self.leave(ticket) else { return false };
        let at = self.rack(waiter.key).place;
        self.settle(now, at);
        true
    }

    /// A newcomer that finds nothing warm: a connection is opened for it if there is room, else it waits until there is.
    pub(super) fn enter(&mut self, now: Instant, key: KeyId, asker: Asker, deadline: Instant) -> Answer {
        let rack = self.rack(key);
        let (max, spare, at) = (rack.terms.max, rack.spare() > 0, rack.place);
        let place = self.place(at);
        let passes = place.line.next(|other| other == key).is_some();
        let joins = spare && !passes && !place.is_failing();
        let has_room = place.open < max;
        let (open, failing) = (place.open, place.is_failing());
        if !joins && !has_room && deadline <= now {
            self.rack_mut(key).refused += 1;
            return Answer::Refused(Why::Late { open, failing });
        }
        if !joins && !has_room && place.line.waiting(asker) >= MOST {
            self.rack_mut(key).refused += 1;
            return Answer::Refused(Why::Crowded);
        }
        let ticket = self.admit(key, asker, deadline);
        match (joins, has_room) {
            (true, _) => drop(self.rack_mut(key).granted.insert(ticket)),
            (false, true) => {
                self.place_mut(at).line.had_turn(asker);
                self.grant(now, ticket);
            }
            (false, false) => self.queue(now, at, ticket),
        }
        Answer::Wait(ticket)
    }

    fn admit(&mut self, key: KeyId, asker: Asker, deadline: Instant) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.waiters.insert(ticket, Waiter { key, asker, deadline });
        self.rack_mut(key).waiting += 1;
        ticket
    }

    fn queue(&mut self, now: Instant, at: u64, ticket: Ticket) {
        let Waiter { key, asker, deadline } = self.waiters[&ticket];
        self.rack_mut(key).waits += 1;
        self.place_mut(at).line.join((asker, ticket, key));
        self.agenda.put(Due::Waiter(ticket), None, deadline);
        self.settle(now, at);
        self.reclaim(at);
    }

    /// Opens a connection for a waiter that is in no line any more. From here on its opening decides how long it takes.
    pub(super) fn grant(&mut self, now: Instant, ticket: Ticket) {
        let Waiter { key, deadline, .. } = self.waiters[&ticket];
        self.agenda.take(Due::Waiter(ticket), Some(deadline));
        self.rack_mut(key).granted.insert(ticket);
        self.open(now, key);
    }

    /// An open connection is this waiter's.
    pub(super) fn give(&mut self, now: Instant, ticket: Ticket, socket: SocketId) {
        let Some(waiter) = self.leave(ticket) else { return };
        self.rack_mut(waiter.key).misses += 1;
        self.set(now, socket, State::Out);
        self.actions.push_back(Action::Give(ticket, socket));
    }

    pub(super) fn refuse(&mut self, ticket: Ticket, why: Why) {
        let Some(waiter) = self.leave(ticket) else { return };
        self.rack_mut(waiter.key).refused += 1;
        self.actions.push_back(Action::Refuse(ticket, why));
    }

    /// A waiter's deadline has passed.
    pub(super) fn late(&mut self, now: Instant, ticket: Ticket) {
        let Some(waiter) = self.waiters.get(&ticket) else { return };
        let at = self.rack(waiter.key).place;
        let place = self.place(at);
        let why = Why::Late { open: place.open, failing: place.is_failing() };
        self.refuse(ticket, why);
        self.settle(now, at);
    }

    /// Strikes a waiter from all lists.
    fn leave(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        self.agenda.take(Due::Waiter(ticket), Some(waiter.deadline));
        let rack = self.rack_mut(waiter.key);
        rack.waiting -= 1;
        rack.granted.remove(&ticket);
        let at = rack.place;
        self.place_mut(at).line.leave((waiter.asker, ticket, waiter.key));
        Some(waiter)
    }
}
