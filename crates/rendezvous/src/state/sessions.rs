//! Sessions: granted, spoken in, ended.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::types::{Meeting, Name, Timer, Waiting};
use super::{Action, Chance, Desk, LineNo, Moment};
use nearpath_p2p::message::{Granted, Hex, HungUp, Refusal, SessionText, Told, Word};
use nearpath_p2p::ticket::Crossing;

impl Meeting {
    /// Which side this is.
    pub(super) fn side(&self, name: &Name) -> Option<usize> {
        self.sides.iter().position(|side| **side == *name)
    }
}

impl<C: Chance> Desk<C> {
    /// Both are here: both get the same grant. The peer has room, too, or the call is refused.
    pub(super) fn grant(&mut self, call: Waiting, now: Moment) {
        let full = |name| self.workers.get(name).is_none_or(|worker| worker.sessions.len() >= self.limits.sessions);
        if full(&call.caller) || full(&call.peer) {
            self.counts.refused += 1;
            self.tell_worker(&call.caller, Told::Refused { call: call.call, why: Refusal::TooMany });
            return;
        }
        self.counts.granted += 1;
        let (mut id, mut secret) = ([0; 16], [0; 32]);
        self.chance.fill(&mut id);
        self.chance.fill(&mut secret);
        let tickets = self.end_of(&call);
        let expires = tickets.min(now.unix.saturating_add(self.limits.life.as_secs()));
        self.open(id, [call.caller.clone(), call.peer.clone()], now, expires);
        let told = Granted {
            call: None,
            peer: call.caller.id.clone(),
            about: call.about,
            session: Hex(id),
            secret: Hex(secret),
            expires,
            life: u64::try_from(now.left(expires).as_millis()).unwrap_or(u64::MAX),
            pass: self.pass(id, &call.peer, &call.caller, tickets),
            hello: call.hello,
        };
        let pass = self.pass(id, &call.caller, &call.peer, tickets);
        let own = Granted { call: Some(call.call), peer: call.peer.id.clone(), pass, hello: None, ..told.clone() };
        self.tell_worker(&call.caller, Told::Granted(own));
        self.tell_worker(&call.peer, Told::Granted(told));
    }

    /// Neither a session nor a pass outlives one of the tickets. A pass may outlive its session: a relay that breaks after hours is
    /// opened anew with it.
    fn end_of(&self, call: &Waiting) -> u64 {
        let ends = [&call.caller, &call.peer].map(|name| self.workers.get(name).and_then(|worker| worker.line));
        ends.iter().flatten().map(|present| present.until_unix).min().unwrap_or_default()
    }

    fn open(&mut self, id: [u8; 16], sides: [Arc<Name>; 2], now: Moment, expires: u64) {
        let until = now.at + now.left(expires);
        self.timers.insert((until, Timer::Session(id)));
        for side in &sides {
            self.workers.entry(side.clone()).or_default().sessions.insert(id);
        }
        self.sessions.insert(id, Meeting { sides, until, kept: VecDeque::new() });
    }

    fn pass(&self, id: [u8; 16], who: &Name, peer: &Name, until: u64) -> nearpath_p2p::message::Pass {
        let (you, peer, job) = (who.id.clone(), peer.id.clone(), who.job.clone());
        Crossing { session: Hex(id), job, you, peer, until }.mint(&self.key)
    }

    /// Passes a word on, or keeps it for a side that has no line now.
    pub(super) fn tell(&mut self, line: LineNo, name: &Name, session: SessionText, word: Word) {
        let known = self.sessions.get_mut(&session.0).and_then(|meeting| Some((meeting.side(name)?, meeting)));
        let Some((side, meeting)) = known else {
            self.actions.push(Action::Tell(line, Told::HungUp { session, why: HungUp::NoSuch }));
            return;
        };
        let other = meeting.sides[1 - side].clone();
        if let Some(there) = self.workers.get(&other).and_then(|worker| worker.line) {
            self.counts.words += 1;
            self.actions.push(Action::Tell(there.line, Told::Tell { session, word }));
        } else if meeting.kept.len() < self.limits.kept {
            self.counts.words += 1;
            meeting.kept.push_back((1 - side, word));
        } else {
            self.end(session.0, HungUp::Absent, None);
        }
    }

    /// Passes a parcel on. For a side that has no line none is kept: what is not acknowledged goes over the relay.
    pub(super) fn pass_parcel(&mut self, line: LineNo, name: &Name, session: SessionText, frame: Bytes) {
        let known = self.sessions.get(&session.0).and_then(|meeting| Some(&meeting.sides[1 - meeting.side(name)?]));
        let Some(other) = known else {
            self.actions.push(Action::Tell(line, Told::HungUp { session, why: HungUp::NoSuch }));
            return;
        };
        if let Some(there) = self.line_of(other) {
            self.counts.parcels += 1;
            self.actions.push(Action::Carry(there, frame));
        }
    }

    /// One side needs the session no longer; the other is told.
    pub(super) fn hang_up(&mut self, name: &Name, session: SessionText) {
        if self.sessions.get(&session.0).is_some_and(|meeting| meeting.side(name).is_some()) {
            self.end(session.0, HungUp::Peer, Some(name));
        }
    }

    pub(super) fn expire_session(&mut self, id: [u8; 16]) {
        self.end(id, HungUp::Expired, None);
    }

    /// Ends a session and tells its sides why; not the one that knows.
    fn end(&mut self, id: [u8; 16], why: HungUp, knows: Option<&Name>) {
        let Some(meeting) = self.sessions.remove(&id) else { return };
        self.timers.remove(&(meeting.until, Timer::Session(id)));
        for side in meeting.sides {
            if let Some(worker) = self.workers.get_mut(&side) {
                worker.sessions.remove(&id);
            }
            if knows != Some(&*side) {
                self.tell_worker(&side, Told::HungUp { session: Hex(id), why });
            }
            self.forget_if_done(&side);
        }
    }
}
