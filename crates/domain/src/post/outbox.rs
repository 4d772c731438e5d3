//! Writing messages into slots, and what waits because ring or pool had no room.

use std::sync::Arc;

use bytes::Bytes;
use nearpath_shm::channel::SendFault;
use nearpath_shm::envelope::{self, flag};
use nearpath_shm::member::NotClaimed;
use nearpath_shm::{Draft, End, Envelope, Kind, Lease, Member};

use super::words::{Fields, OwnedField, Unsent};

/// When the pool is short, bodies go in parts no smaller than this.
const LEAST_PART: u32 = 4096;
/// Parts that may lie in a ring unread: enough to keep both sides busy, few enough to leave slots to others.
const WINDOW: u32 = 8;
const EXCUSE: &[u8] = b"the function's answer has a head that cannot be sent\n";

/// Sends the first message of a letter; returns how many bytes of the body went with it. When that is not all, the rest is
/// for the outbox.
pub(super) fn begin(
    end: &mut End,
    member: &Arc<Member>,
    envelope: Envelope,
    fields: Fields<'_>,
    body: &Bytes,
) -> Result<usize, Unsent> {
    let head: usize = fields.iter().map(|(name, value)| 4 + name.len() + value.len()).sum();
    let head = u32::try_from(head).ok().filter(|head| *head <= envelope::MAX_HEAD).ok_or(Unsent::Head)?;
    let mut draft = Draft::new(claim(member, envelope::body_at(head), body.len())?);
    for (name, value) in fields {
        draft.field(name, value).map_err(|_| Unsent::Head)?;
    }
    send(end, draft, envelope, body, body.len())
}

/// A slot for a message whose body begins at `start`: for all of the body, or for as much as there is.
fn claim(member: &Arc<Member>, start: u32, body: usize) -> Result<Lease, Unsent> {
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

fn send(end: &mut End, mut draft: Draft, mut envelope: Envelope, body: &[u8], whole: usize) -> Result<usize, Unsent> {
    let bytes = body.len().min(draft.room() as usize);
    draft.body(&body[..bytes]).map_err(|_| Unsent::Head)?;
    if bytes < body.len() {
        envelope.flags |= flag::MORE;
    }
    envelope.total = whole as u64;
    match end.send(draft.finish(envelope)) {
        Ok(()) => Ok(bytes),
        Err(not) => Err(match not.why {
            SendFault::Full => Unsent::NoCredit,
            SendFault::Closed(state) => Unsent::Closed(state),
            SendFault::Lost(_) => Unsent::NoSlot,
        }),
    }
}

/// A message that has not gone, or a body of which parts have not.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) envelope: Envelope,
    fields: Vec<OwnedField>,
    body: Bytes,
    whole: usize,
    begun: bool,
}

/// How far a letter got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// All of it.
    Gone,
    /// The peer must take something first.
    WantsRoom,
    /// Somebody must release a slot first.
    WantsSlot,
    /// Never: the channel is closed, or no slot is large enough.
    Hopeless,
}

impl Letter {
    /// Nothing of it has gone.
    pub(super) fn whole(envelope: Envelope, fields: Vec<OwnedField>, body: Bytes) -> Self {
        Self { envelope, fields, whole: body.len(), body, begun: false }
    }

    /// The first message has gone with `sent` bytes of the body.
    pub(super) fn rest(envelope: Envelope, mut body: Bytes, sent: usize) -> Self {
        let whole = body.len();
        let body = body.split_off(sent);
        let envelope = Envelope { kind: Kind::Part, flags: 0, ..envelope };
        Self { envelope, fields: Vec::new(), body, whole, begun: true }
    }

    /// Sends what can be sent.
    pub(super) fn advance(&mut self, end: &mut End, member: &Arc<Member>) -> Progress {
        loop {
            if !has_room(end, self.begun) {
                return Progress::WantsRoom;
            }
            match self.step(end, member) {
                Ok(()) if self.begun && self.body.is_empty() => return Progress::Gone,
                Ok(()) => {}
                Err(Unsent::NoCredit) => return Progress::WantsRoom,
                Err(Unsent::NoSlot) => return Progress::WantsSlot,
                Err(_) => return Progress::Hopeless,
            }
        }
    }

    fn step(&mut self, end: &mut End, member: &Arc<Member>) -> Result<(), Unsent> {
        let sent = if self.begun {
            let draft = Draft::new(claim(member, envelope::body_at(0), self.body.len())?);
            send(end, draft, self.envelope, &self.body, self.whole)?
        } else {
            let fields: Vec<(&str, &[u8])> = self.fields.iter().map(|(name, value)| (&**name, &**value)).collect();
            begin(end, member, self.envelope, &fields, &self.body)?
        };
        let _ = self.body.split_to(sent);
        self.envelope = Envelope { kind: Kind::Part, flags: 0, ..self.envelope };
        self.begun = true;
        Ok(())
    }

    /// What an answer whose head cannot be written goes as.
    pub(super) fn excuse(&self) -> Option<Self> {
        let writable = self.begun || self.envelope.kind != Kind::Answer || self.fields.is_empty();
        let envelope = Envelope { status: 502, flags: flag::PLATFORM, ..self.envelope };
        (!writable).then(|| Self::whole(envelope, Vec::new(), Bytes::from_static(EXCUSE)))
    }

    /// Whether its next message may go by the ring's room alone.
    pub(super) fn may_go(&self, end: &mut End) -> bool {
        has_room(end, self.begun)
    }

    /// Whether the peer has seen something of it.
    pub(super) fn begun(&self) -> bool {
        self.begun
    }
}

fn has_room(end: &mut End, part: bool) -> bool {
    let room = end.room();
    room > 0 && (!part || end.channel().capacity() - room < WINDOW)
}
