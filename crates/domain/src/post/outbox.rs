//! Writing messages into slots, and first messages that wait because ring or pool had no room.

use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use nearpath_shm::channel::{NotSent, SendFault};
use nearpath_shm::envelope::{self, TOTAL_UNKNOWN, flag};
use nearpath_shm::member::NotClaimed;
use nearpath_shm::{Draft, End, Envelope, Kind, Lease, Member, Outgoing, Parcel};

use super::flow::{Flow, Ticket};
use super::payload::{Load, Payload};
use super::words::{Fields, OwnedField, Unsent};
use crate::outflow::WINDOW;

/// When the pool is short, bodies go in parts no smaller than this.
const LEAST_PART: u32 = 4096;
/// Most bytes that are left free before a message that is smaller than its slot, in lines of the cache.
const SLACK: usize = 128;
const LINE: u32 = 64;
const EXCUSE: &[u8] = b"the function's answer has a head that cannot be sent\n";
const LOST: &[u8] = b"the function's answer lay in memory that was taken from it\n";

/// How much of a body there will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whole {
    /// What is there is all.
    Here,
    /// More will be handed over; so many bytes in all, if anybody knows.
    Open(Option<u64>),
}

/// Sends the first message of a body: the slot that it lies in, where it may be handed over, else a copy. What is left, if
/// anything is, goes on as a flow.
pub(super) fn begin(
    end: &mut End,
    member: &Arc<Member>,
    envelope: Envelope,
    fields: Fields<'_>,
    load: &mut Load<'_>,
    whole: Whole,
) -> Result<Option<Flow>, Unsent> {
    if whole == Whole::Here
        && let Load::Given(body) = load
        && let Some(parcel) = body.take_parcel(member)
    {
        match hand_over(end, parcel, envelope, fields) {
            Ok(()) => return Ok(None),
            Err((_, None)) => return Err(Unsent::Lost),
            Err((why, Some(parcel))) => {
                body.give_back(parcel);
                why.map_or(Ok(()), Err)?; // without a reason: it has to be copied
            }
        }
    }
    copy(end, member, envelope, fields, load.bytes(), whole)
}

/// Sends a body where it lies. What is not sent comes back; without a reason when its head has no room before it.
fn hand_over(
    end: &mut End,
    parcel: Parcel,
    envelope: Envelope,
    fields: Fields<'_>,
) -> Result<(), (Option<Unsent>, Option<Parcel>)> {
    let draft = parcel.address(fields).map_err(|(parcel, _)| (None, Some(parcel)))?;
    end.send(draft.finish(envelope)).map_err(|NotSent { why, message }| {
        let parcel = message.and_then(Outgoing::into_parcel);
        (Some(unsent(why)), parcel)
    })
}

fn copy(
    end: &mut End,
    member: &Arc<Member>,
    mut envelope: Envelope,
    fields: Fields<'_>,
    body: &Bytes,
    whole: Whole,
) -> Result<Option<Flow>, Unsent> {
    let head: usize = fields.iter().map(|(name, value)| 4 + name.len() + value.len()).sum();
    let head = u32::try_from(head).ok().filter(|head| *head <= envelope::MAX_HEAD).ok_or(Unsent::Head)?;
    let lease = claim(member, envelope::body_at(head), body.len())?;
    let start = slack(&lease, envelope::body_at(head), body.len());
    let mut draft = Draft::at(lease, start);
    for (name, value) in fields {
        draft.field(name, value).map_err(|_| Unsent::Head)?;
    }
    let bytes = body.len().min(draft.room() as usize);
    let open = whole != Whole::Here;
    envelope.total = match whole {
        Whole::Here => body.len() as u64,
        Whole::Open(total) => total.unwrap_or(TOTAL_UNKNOWN).max(bytes as u64),
    };
    if bytes == body.len() && !open {
        return send(end, draft, envelope, body, false).map(|()| None);
    }
    let ticket = Ticket::of(draft.lease());
    send(end, draft, envelope, &body[..bytes], true)?;
    Ok(Some(Flow::new(envelope, body.slice(bytes..), open, ticket)))
}

/// What a message can leave free before it, so that its body can be passed on under a longer head.
fn slack(lease: &Lease, start: u32, body: usize) -> u32 {
    let left = (lease.size() - start) as usize;
    left.saturating_sub(body).min(SLACK) as u32 / LINE * LINE
}

/// A slot for a message whose body begins at `start`: for all of the body, or for as much as there is.
pub(super) fn claim(member: &Arc<Member>, start: u32, body: usize) -> Result<Lease, Unsent> {
    let largest = member.pool().geometry().classes().last().map_or(0, |class| class.size);
    let least = if body == 0 { start } else { start.saturating_add(1) };
    let mut want = u32::try_from(start as usize + body).unwrap_or(u32::MAX).min(largest);
    loop {
        match member.claim(want) {
            Ok(lease) if lease.size() >= least => return Ok(lease),
            Ok(_) | Err(NotClaimed::TooLarge) => return Err(Unsent::Head),
            Err(NotClaimed::Bound | NotClaimed::Exhausted) if want / 2 >= LEAST_PART.max(least) => want /= 2,
            Err(NotClaimed::Bound | NotClaimed::Exhausted) => return Err(Unsent::NoSlot),
        }
    }
}

pub(super) fn send(
    end: &mut End,
    mut draft: Draft,
    mut envelope: Envelope,
    body: &[u8],
    more: bool,
) -> Result<(), Unsent> {
    draft.body(body).map_err(|_| Unsent::Head)?;
    if more {
        envelope.flags |= flag::MORE;
    }
    let begins = !matches!(envelope.kind, Kind::Part | Kind::Cancel | Kind::Taken);
    let message = draft.finish(envelope);
    let sent = if begins { end.send(message) } else { end.send_more(message) };
    sent.map_err(|not| unsent(not.why))
}

fn unsent(why: SendFault) -> Unsent {
    match why {
        SendFault::Full => Unsent::NoCredit,
        SendFault::Closed(state) => Unsent::Closed(state),
        SendFault::Lost(_) => Unsent::NoSlot,
    }
}

/// A first message that has not gone.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) envelope: Envelope,
    fields: Vec<OwnedField>,
    body: Payload,
    whole: Whole,
    /// Who wants to hand more over; nobody can before this has gone.
    pub(super) writer: Option<Waker>,
}

/// How far a message or body got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// All of it.
    Gone,
    /// Its writer must hand something over first.
    WantsWriter,
    /// The peer must take something first.
    WantsRoom,
    /// Somebody must release a slot first.
    WantsSlot,
    /// Never: the channel is closed, or no slot is large enough.
    Hopeless,
}

impl Letter {
    pub(super) fn new(envelope: Envelope, fields: Vec<OwnedField>, body: Payload, whole: Whole) -> Self {
        Self { envelope, fields, body, whole, writer: None }
    }

    /// What ends something that had begun.
    pub(super) fn cancel(call: u64) -> Self {
        Self::new(Envelope::new(Kind::Cancel, call), Vec::new(), Payload::default(), Whole::Here)
    }

    /// Sends it, if it can be sent. What is left of the body goes on as a flow.
    pub(super) fn advance(&mut self, end: &mut End, member: &Arc<Member>) -> Result<Option<Flow>, Progress> {
        if !has_room(end, false) {
            return Err(Progress::WantsRoom);
        }
        let fields: Vec<(&str, &[u8])> = self.fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        let load = &mut Load::Given(&mut self.body);
        begin(end, member, self.envelope, &fields, load, self.whole).map_err(|why| match why {
            Unsent::NoCredit => Progress::WantsRoom,
            Unsent::NoSlot => Progress::WantsSlot,
            Unsent::Lost => {
                *self = Self::lost(self.envelope);
                Progress::WantsRoom
            }
            _ => Progress::Hopeless,
        })
    }

    /// What an answer whose head cannot be written goes as.
    pub(super) fn excuse(&self) -> Option<Self> {
        let writable = self.envelope.kind != Kind::Answer || self.fields.is_empty();
        let envelope = Envelope { status: 502, flags: flag::PLATFORM, ..self.envelope };
        (!writable).then(|| Self::new(envelope, Vec::new(), Bytes::from_static(EXCUSE).into(), Whole::Here))
    }

    /// What an answer goes as whose body was lost.
    pub(super) fn lost(envelope: Envelope) -> Self {
        let envelope = Envelope { status: 502, flags: flag::PLATFORM, ..envelope };
        Self::new(envelope, Vec::new(), Bytes::from_static(LOST).into(), Whole::Here)
    }

    /// What is there is all.
    pub(super) fn close(&mut self) {
        self.whole = Whole::Here;
    }

    /// Whether its writer may hand more over, once it has gone.
    pub(super) fn is_open(&self) -> bool {
        self.whole != Whole::Here
    }
}

impl Drop for Letter {
    fn drop(&mut self) {
        self.writer.take().into_iter().for_each(Waker::wake);
    }
}

pub(super) fn has_room(end: &mut End, part: bool) -> bool {
    let room = end.room();
    room > 0 && (!part || ((end.channel().capacity() - room) as usize) < WINDOW)
}
