//! A body of which the first message has gone: its parts, as the receiver lets them go.
//!
//! In a shared domain the slot's lease says whether a part was let go; in a strict one the receiver says how many it has let
//! go of so far, and parts are let go in the order in which they went.

use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use nearpath_shm::{Draft, End, Envelope, Kind, Lease, Member, Slot, envelope};

use super::outbox::{Progress, claim, has_room, send};
use super::words::Unsent;
use crate::outflow::{Due, Outflow};

/// A part takes a slot of this size at most: large ones are few, and a slow reader keeps some.
const PART: usize = 65_536 - envelope::SIZE;

/// Names a message that is with the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(Slot, u32);

impl Ticket {
    pub(super) fn of(lease: &Lease) -> Self {
        Self(lease.slot(), lease.generation())
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Flow {
    envelope: Envelope,
    pub(super) out: Outflow<Ticket>,
    told: Told,
}

/// What a strict receiver has said of a body's messages.
#[derive(Debug, Default)]
struct Told {
    /// The most that it has let go of, the first message included.
    all: u64,
    /// Those of them that still count as with it.
    unseen: u64,
}

impl Told {
    /// Only more counts. What it says is believed: who lies stops, or floods, itself.
    fn hear(&mut self, all: u64) {
        self.unseen = self.unseen.saturating_add(all.saturating_sub(self.all));
        self.all = self.all.max(all);
    }

    /// Whether the oldest message that still counts is with the receiver.
    fn holds_oldest(&mut self) -> bool {
        let holds = self.unseen == 0;
        self.unseen = self.unseen.saturating_sub(1);
        holds
    }
}

impl Flow {
    /// `first`: the message that has gone; `rest`: what is there of the body beyond it.
    pub(super) fn new(first: Envelope, rest: Bytes, open: bool, ticket: Ticket) -> Self {
        let envelope = Envelope { total: first.total, ..Envelope::new(Kind::Part, first.call) };
        Self { envelope, out: Outflow::new(rest, open, ticket), told: Told::default() }
    }

    /// A strict receiver has let go of so many messages of this body, from its first one on.
    pub(super) fn hear(&mut self, let_go: u64) {
        self.told.hear(let_go);
    }

    fn due(&mut self, member: &Member, window: usize) -> Due {
        let Self { out, told, .. } = self;
        match member.pool().is_own() {
            true => out.due(window, |_| told.holds_oldest()),
            false => out.due(window, |ticket| member.outlives(ticket.0, ticket.1)),
        }
    }

    /// Sends what can be sent.
    pub(super) fn advance(&mut self, end: &mut End, member: &Arc<Member>, window: usize) -> Progress {
        loop {
            match self.due(member, window) {
                Due::Nothing => return Progress::Gone,
                Due::Writer => return Progress::WantsWriter,
                Due::Window => return Progress::WantsRoom,
                Due::Part if !has_room(end, true) => return Progress::WantsRoom,
                Due::Part => {}
            }
            match self.step(end, member) {
                Ok(()) => {}
                Err(Unsent::NoCredit) => return Progress::WantsRoom,
                Err(Unsent::NoSlot) => return Progress::WantsSlot,
                Err(_) => return Progress::Hopeless,
            }
        }
    }

    fn step(&mut self, end: &mut End, member: &Arc<Member>) -> Result<(), Unsent> {
        let piece = self.out.piece();
        let part = &piece[..piece.len().min(PART)];
        let draft = Draft::new(claim(member, envelope::body_at(0), part.len())?);
        let ticket = Ticket::of(draft.lease());
        let bytes = part.len().min(draft.room() as usize);
        let more = !self.out.ends_with(bytes);
        send(end, draft, self.envelope, &part[..bytes], more)?;
        self.out.sent(bytes, ticket).into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Whether something can go: what to look at before sleeping.
    pub(super) fn may_go(&mut self, member: &Arc<Member>, window: usize) -> bool {
        self.due(member, window) == Due::Part
    }
}

/// Its writer hears that nobody wants more.
impl Drop for Flow {
    fn drop(&mut self) {
        self.out.writer().into_iter().for_each(Waker::wake);
    }
}
