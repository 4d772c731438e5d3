//! What comes on a channel: whole messages, bodies put together, bodies read as they come.

use std::sync::Arc;

use bytes::Bytes;
use nearpath_shm::channel::ReceiveFault;
use nearpath_shm::envelope::flag;
use nearpath_shm::{Envelope, Kind, Message, Side};

use super::Link;
use crate::assembly::Assembly;
use crate::post::payload::Payload;
use crate::post::rest::Feed;
use crate::post::words::CallError;

/// Messages taken from one channel before the others have their turn.
const BATCH: usize = 64;

/// Something of which the first message has come.
#[derive(Debug)]
pub(super) enum Partial {
    /// It is put together.
    Assembly(Assembly<First>),
    /// It is read as it comes.
    Feed(Arc<Feed>),
}

/// How bodies of several parts are taken.
#[derive(Debug, Clone, Copy)]
pub(in crate::post) struct Taking {
    /// The largest that is put together.
    pub(in crate::post) bound: usize,
    /// They are read as they come, those of calls and answers.
    pub(in crate::post) streams: bool,
    /// The peer has to be told what was let go of: it sees no lease here.
    pub(in crate::post) told: bool,
}

/// The first message of something that comes in parts.
pub(in crate::post) type First = (Envelope, Vec<u8>);

/// What came.
#[derive(Debug)]
pub(in crate::post) enum Came {
    /// A whole message.
    Whole(Envelope, Vec<u8>, Payload),
    /// The first part of a body that is read as it comes.
    Begun(Envelope, Vec<u8>, Bytes, Arc<Feed>),
    /// The last part of one.
    Ended(u64),
    /// The other side gave it up; whether it was being put together.
    Cancelled(u64, bool),
    /// It cannot be taken: too long, or with a faulty head.
    Bad(Envelope),
    /// Part of something.
    Part,
}

/// The peer broke the rules of this protocol.
#[derive(Debug)]
struct Breach;

impl Link {
    /// Takes what is there, up to a batch.
    pub(in crate::post) fn take(&mut self, taking: Taking, mut came: impl FnMut(&mut Self, Came)) {
        for _ in 0..BATCH {
            if self.is_clogged() {
                return;
            }
            match self.end.receive() {
                Ok(Some(message)) => match self.sort(message, taking) {
                    Ok(sorted) => came(self, sorted),
                    Err(Breach) => return self.break_off(),
                },
                Ok(None) => return,
                Err(ReceiveFault::Closed(_)) => return self.closed = true,
                Err(_) => return self.break_off(),
            }
        }
    }

    fn sort(&mut self, message: Message, taking: Taking) -> Result<Came, Breach> {
        let envelope = *message.envelope();
        let fits = match (self.side, envelope.kind) {
            (_, Kind::Part | Kind::Cancel) => true,
            (_, Kind::Taken) => taking.told,
            (Side::Caller, kind) => kind == Kind::Answer,
            (Side::Callee, Kind::Call) => !self.events_only,
            (Side::Callee, kind) => kind != Kind::Answer,
        };
        if !fits {
            return Err(Breach); // an answer where calls come from, a call against the edge's direction, a word out of place
        }
        Ok(match envelope.kind {
            Kind::Cancel => Came::Cancelled(envelope.call, self.break_part(envelope.call, CallError::BrokenOff)),
            Kind::Part => self.part(message, envelope, taking),
            Kind::Taken => {
                self.hear(envelope.call, envelope.total);
                Came::Part
            }
            _ => self.first(message, envelope, taking)?,
        })
    }

    fn first(&mut self, message: Message, envelope: Envelope, taking: Taking) -> Result<Came, Breach> {
        let streams = taking.streams || self.as_they_come.contains(&envelope.call);
        let streams = streams && envelope.kind != Kind::Event;
        if taking.told && envelope.has(flag::MORE) && !streams {
            self.tell_all(envelope.call);
        }
        let mut head = Vec::new();
        if message.head(&mut head).is_err() {
            return Ok(Came::Bad(envelope));
        }
        if !envelope.has(flag::MORE) {
            // Who takes bodies as they come reads them, and passes none on as it is.
            let body = if taking.streams { whole(message).into() } else { Payload::received(message) };
            return Ok(Came::Whole(envelope, head, body));
        }
        if self.parts.len() >= self.end.channel().capacity() as usize || self.parts.contains_key(&envelope.call) {
            return Err(Breach);
        }
        let (partial, came) = if streams {
            let feed = Feed::new(envelope.total);
            let body = self.payload(message, &feed, taking);
            (Partial::Feed(Arc::clone(&feed)), Came::Begun(envelope, head, body, feed))
        } else {
            let mut assembly = Assembly::new((envelope, head), envelope.total, taking.bound);
            if !append(&mut assembly, &message) {
                return Ok(Came::Bad(envelope));
            }
            (Partial::Assembly(assembly), Came::Part)
        };
        self.parts.insert(envelope.call, partial);
        Ok(came)
    }

    /// A part where it lies: letting it go rings the sender, or is told to it.
    fn payload(&self, message: Message, feed: &Arc<Feed>, taking: Taking) -> Bytes {
        match taking.told {
            true => feed.hold(message),
            false => Bytes::from_owner(nearpath_shm::Payload::part(message, self.end.desk().clone())),
        }
    }

    fn part(&mut self, message: Message, envelope: Envelope, taking: Taking) -> Came {
        let last = !envelope.has(flag::MORE);
        match self.parts.get_mut(&envelope.call) {
            Some(Partial::Feed(feed)) => {
                let feed = Arc::clone(feed);
                feed.came(self.payload(message, &feed, taking), last);
                if last {
                    self.parts.remove(&envelope.call);
                    return Came::Ended(envelope.call);
                }
                self.clogged = Some(feed).filter(|feed| feed.is_clogged());
                Came::Part
            }
            Some(Partial::Assembly(assembly)) => {
                let fits = append(assembly, &message);
                if fits && !last { Came::Part } else { self.assembled(envelope.call, fits) }
            }
            // Parts of what was given up are still underway: they are let go.
            None => Came::Part,
        }
    }

    fn assembled(&mut self, call: u64, fits: bool) -> Came {
        let Some(Partial::Assembly(assembly)) = self.parts.remove(&call) else { return Came::Part };
        let ((first, head), body) = assembly.finish();
        if fits { Came::Whole(first, head, body.into()) } else { Came::Bad(first) }
    }

    pub(super) fn is_clogged(&mut self) -> bool {
        self.clogged = self.clogged.take().filter(|feed| feed.is_clogged());
        self.clogged.is_some()
    }

    /// No more of this body is taken; what comes is let go. Whether it was being put together.
    pub(in crate::post) fn break_part(&mut self, call: u64, why: CallError) -> bool {
        match self.parts.remove(&call) {
            Some(Partial::Feed(feed)) => {
                feed.broke(why);
                false
            }
            Some(Partial::Assembly(assembly)) => assembly.first.0.kind == Kind::Call, // nobody answers an event
            None => false,
        }
    }

    /// Its reader hears that the peer's body is of no use any more; its end is still awaited.
    pub(in crate::post) fn disrupt(&self, call: u64, why: CallError) {
        if let Some(Partial::Feed(feed)) = self.parts.get(&call) {
            feed.broke(why);
        }
    }

    /// Whether the peer's body of this call is being read.
    pub(in crate::post) fn feeds(&self, call: u64) -> bool {
        matches!(self.parts.get(&call), Some(Partial::Feed(_)))
    }

    /// The peer is gone: what has come is still read, the rest will not come.
    pub(in crate::post) fn break_all(&mut self, why: CallError) {
        for partial in std::mem::take(&mut self.parts).into_values() {
            if let Partial::Feed(feed) = partial {
                feed.broke(why);
            }
        }
    }

    /// The answer to this call is read as it comes.
    pub(in crate::post) fn as_it_comes(&mut self, call: u64) {
        self.as_they_come.insert(call);
    }
}

/// The body of a message that is the only one.
fn whole(message: Message) -> Bytes {
    if message.body_len() == 0 { Bytes::new() } else { Bytes::from_owner(nearpath_shm::Payload::new(message)) }
}

fn append(assembly: &mut Assembly<First>, message: &Message) -> bool {
    assembly.grow(message.body_len() as usize).is_ok_and(|room| message.copy_body(room))
}
