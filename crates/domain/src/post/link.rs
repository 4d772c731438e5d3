//! One channel from the party's side: its end, what waits to be sent, and what has come in part.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use nearpath_shm::channel::ReceiveFault;
use nearpath_shm::envelope::flag;
use nearpath_shm::{End, Envelope, Kind, Member, Message, Payload, Side};
use nearpath_types::InstanceId;

use super::outbox::{Letter, Progress};
use super::words::Caller;
use crate::assembly::Assembly;
use crate::clock::Nanos;

/// Messages taken from one channel before the others have their turn.
const BATCH: usize = 64;

/// A channel that is open, or being wound up.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) end: End,
    pub(super) side: Side,
    /// The one that calls here; for a callee.
    pub(super) caller: Arc<Caller>,
    pub(super) instance: InstanceId,
    pub(super) outbox: VecDeque<Letter>,
    pub(super) wants_slot: bool,
    parts: HashMap<u64, Assembly<First>>,
    /// Calls taken here and not answered, with the time when they came: for a callee.
    pub(super) taken: HashMap<u64, Taken>,
    pub(super) closed: bool,
    pub(super) withdrawn: bool,
}

/// A call that this party owes an answer.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) since: Nanos,
    pub(super) cancelled: bool,
    pub(super) waker: Option<std::task::Waker>,
}

/// The first message of something that comes in parts.
pub(super) type First = (Envelope, Vec<u8>);

/// What came.
#[derive(Debug)]
pub(super) enum Came {
    /// A whole message.
    Whole(Envelope, Vec<u8>, Bytes),
    /// The other side gave it up; whether only parts of it had come.
    Cancelled(u64, bool),
    /// It cannot be taken: too long, or with a faulty head.
    Bad(Envelope),
    /// Part of something.
    Part,
}

/// The peer broke the rules of this protocol.
#[derive(Debug)]
pub(super) struct Breach;

impl Link {
    pub(super) fn new(end: End, side: Side, caller: Arc<Caller>, instance: InstanceId) -> Self {
        Self {
            end,
            side,
            caller,
            instance,
            outbox: VecDeque::new(),
            wants_slot: false,
            parts: HashMap::new(),
            taken: HashMap::new(),
            closed: false,
            withdrawn: false,
        }
    }

    /// Takes what is there, up to a batch.
    pub(super) fn take(&mut self, bound: usize, mut came: impl FnMut(&mut Self, Came)) {
        for _ in 0..BATCH {
            match self.end.receive() {
                Ok(Some(message)) => match self.sort(message, bound) {
                    Ok(sorted) => came(self, sorted),
                    Err(Breach) => return self.break_off(),
                },
                Ok(None) => return,
                Err(ReceiveFault::Closed(_)) => return self.closed = true,
                Err(_) => return self.break_off(),
            }
        }
    }

    /// Closes the channel for a peer that broke the rules.
    pub(super) fn break_off(&mut self) {
        self.end.break_off();
        self.closed = true;
    }

    fn sort(&mut self, message: Message, bound: usize) -> Result<Came, Breach> {
        let envelope = *message.envelope();
        let fits = match (self.side, envelope.kind) {
            (_, Kind::Part | Kind::Cancel) => true,
            (Side::Caller, kind) => kind == Kind::Answer,
            (Side::Callee, kind) => kind != Kind::Answer,
        };
        if !fits {
            return Err(Breach); // an answer where calls come from, or a call against the edge's direction
        }
        Ok(match envelope.kind {
            Kind::Cancel => Came::Cancelled(envelope.call, self.parts.remove(&envelope.call).is_some()),
            Kind::Part => self.part(message, envelope),
            _ => self.first(message, envelope, bound)?,
        })
    }

    fn first(&mut self, message: Message, envelope: Envelope, bound: usize) -> Result<Came, Breach> {
        let mut head = Vec::new();
        if message.head(&mut head).is_err() {
            return Ok(Came::Bad(envelope));
        }
        if !envelope.has(flag::MORE) {
            let body = if message.body_len() == 0 { Bytes::new() } else { Bytes::from_owner(Payload::new(message)) };
            return Ok(Came::Whole(envelope, head, body));
        }
        if self.parts.len() >= self.end.channel().capacity() as usize {
            return Err(Breach);
        }
        let mut assembly = Assembly::new((envelope, head), envelope.total, bound);
        if !append(&mut assembly, &message) {
            return Ok(Came::Bad(envelope));
        }
        if self.parts.insert(envelope.call, assembly).is_some() { Err(Breach) } else { Ok(Came::Part) }
    }

    fn part(&mut self, message: Message, envelope: Envelope) -> Came {
        // Parts of what was given up are still underway: they are let go.
        let Some(assembly) = self.parts.get_mut(&envelope.call) else { return Came::Part };
        let fits = append(assembly, &message);
        if fits && envelope.has(flag::MORE) {
            return Came::Part;
        }
        let whole = self.parts.remove(&envelope.call).map(Assembly::finish);
        match whole {
            Some(((first, head), body)) if fits => Came::Whole(first, head, body),
            Some(((first, _), _)) => Came::Bad(first),
            None => Came::Part,
        }
    }

    /// Sends what can be sent of what waits. An answer that cannot be written goes as an error: its caller waits.
    pub(super) fn pump(&mut self, member: &Arc<Member>) {
        self.wants_slot = false;
        while let Some(letter) = self.outbox.front_mut() {
            match letter.advance(&mut self.end, member) {
                Progress::Gone => drop(self.outbox.pop_front()),
                Progress::Hopeless => match letter.excuse() {
                    Some(excuse) => *letter = excuse,
                    None => drop(self.outbox.pop_front()),
                },
                Progress::WantsSlot => {
                    self.wants_slot = true;
                    break;
                }
                Progress::WantsRoom => {
                    self.end.starve();
                    if !letter.may_go(&mut self.end) {
                        break;
                    }
                }
            }
        }
    }

    /// Takes back what has not been sent of a call. Whether the peer had seen some of it, but not all.
    pub(super) fn give_up(&mut self, call: u64) -> bool {
        let begun = self.outbox.iter().any(|letter| letter.envelope.call == call && letter.begun());
        self.outbox.retain(|letter| letter.envelope.call != call);
        begun
    }

    /// What to look at before sleeping.
    pub(super) fn ready(&mut self) -> bool {
        let goes = match self.outbox.front() {
            Some(letter) if !self.wants_slot => letter.may_go(&mut self.end),
            _ => false,
        };
        goes || self.end.ready()
    }

    /// Whether nothing is owed to anybody here, from this side.
    pub(super) fn is_idle(&self) -> bool {
        self.outbox.is_empty() && self.taken.is_empty() && self.parts.is_empty()
    }
}

fn append(assembly: &mut Assembly<First>, message: &Message) -> bool {
    assembly.grow(message.body_len() as usize).is_ok_and(|room| message.copy_body(room))
}
