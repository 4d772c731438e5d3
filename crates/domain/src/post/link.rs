//! One channel from the party's side: its end, what waits to be sent, and what has come in part.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use nearpath_shm::channel::ReceiveFault;
use nearpath_shm::envelope::{self, flag};
use nearpath_shm::{Draft, End, Envelope, Kind, Member, Message, Side};
use nearpath_types::InstanceId;

use super::flow::Flow;
use super::outbox::{Letter, Progress, claim, has_room, send};
use super::payload::Payload;
use super::rest::Feed;
use super::words::{CallError, Caller, Unsent};
use crate::assembly::Assembly;
use crate::clock::{self, Nanos};
use crate::outflow::window;

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
    /// First messages that wait, in order.
    pub(super) outbox: VecDeque<Letter>,
    /// Bodies that are on their way, by call, and those of them with something to send, in turn.
    flows: BTreeMap<u64, Flow>,
    busy: VecDeque<u64>,
    pub(super) wants_slot: bool,
    parts: HashMap<u64, Partial>,
    /// Calls whose answers are read as they come, whatever the party does otherwise.
    as_they_come: BTreeSet<u64>,
    /// What a strict peer is to be told, by call: so many messages of its body have been let go of.
    untold: BTreeMap<u64, u64>,
    /// The body that has to be read before more is taken from this channel.
    clogged: Option<Arc<Feed>>,
    /// Calls taken here and not answered, with the time when they came: for a callee.
    pub(super) taken: HashMap<u64, Taken>,
    /// No calls here.
    pub(super) events_only: bool,
    pub(super) closed: bool,
    pub(super) withdrawn: bool,
}

/// A call that this party owes an answer.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) since: Nanos,
    pub(super) cancelled: bool,
    /// Its answer has begun: the status that it has.
    pub(super) begun: Option<u16>,
    pub(super) waker: Option<Waker>,
}

/// Something of which the first message has come.
#[derive(Debug)]
enum Partial {
    /// It is put together.
    Assembly(Assembly<First>),
    /// It is read as it comes.
    Feed(Arc<Feed>),
}

/// How bodies of several parts are taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taking {
    /// The largest that is put together.
    pub(super) bound: usize,
    /// They are read as they come, those of calls and answers.
    pub(super) streams: bool,
    /// The peer has to be told what was let go of: it sees no lease here.
    pub(super) told: bool,
}

/// All that there is of a body, and will be: a receiver that puts it together needs no window.
const ALL: u64 = u64::MAX;

/// The first message of something that comes in parts.
pub(super) type First = (Envelope, Vec<u8>);

/// What came.
#[derive(Debug)]
pub(super) enum Came {
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
pub(super) struct Breach;

impl Link {
    pub(super) fn new(end: End, side: Side, caller: Arc<Caller>, instance: InstanceId) -> Self {
        Self {
            end,
            side,
            caller,
            instance,
            outbox: VecDeque::new(),
            flows: BTreeMap::new(),
            busy: VecDeque::new(),
            wants_slot: false,
            parts: HashMap::new(),
            as_they_come: BTreeSet::new(),
            untold: BTreeMap::new(),
            clogged: None,
            taken: HashMap::new(),
            events_only: false,
            closed: false,
            withdrawn: false,
        }
    }

    /// Takes what is there, up to a batch.
    pub(super) fn take(&mut self, taking: Taking, mut came: impl FnMut(&mut Self, Came)) {
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

    /// Closes the channel for a peer that broke the rules.
    pub(super) fn break_off(&mut self) {
        self.end.break_off();
        self.closed = true;
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
            self.tell(envelope.call, ALL);
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

    /// A strict peer has let go of so many messages of this body: more of it may go.
    fn hear(&mut self, call: u64, let_go: u64) {
        if let Some(flow) = self.flows.get_mut(&call) {
            flow.hear(let_go);
            self.stir(call);
        }
    }

    /// A strict peer is to be told, with the next [`Link::pump`], that so many messages of its body have been let go of. Of
    /// several words that wait the largest counts.
    pub(super) fn tell(&mut self, call: u64, let_go: u64) {
        let untold = self.untold.entry(call).or_default();
        *untold = let_go.max(*untold);
    }

    /// The same for a body that nobody reads.
    pub(super) fn tell_all(&mut self, call: u64) {
        self.tell(call, ALL);
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

    fn is_clogged(&mut self) -> bool {
        self.clogged = self.clogged.take().filter(|feed| feed.is_clogged());
        self.clogged.is_some()
    }

    /// No more of this body is taken; what comes is let go. Whether it was being put together.
    pub(super) fn break_part(&mut self, call: u64, why: CallError) -> bool {
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
    pub(super) fn disrupt(&self, call: u64, why: CallError) {
        if let Some(Partial::Feed(feed)) = self.parts.get(&call) {
            feed.broke(why);
        }
    }

    /// Whether the peer's body of this call is being read.
    pub(super) fn feeds(&self, call: u64) -> bool {
        matches!(self.parts.get(&call), Some(Partial::Feed(_)))
    }

    /// The peer is gone: what has come is still read, the rest will not come.
    pub(super) fn break_all(&mut self, why: CallError) {
        for partial in std::mem::take(&mut self.parts).into_values() {
            if let Partial::Feed(feed) = partial {
                feed.broke(why);
            }
        }
    }

    /// The answer to this call is read as it comes.
    pub(super) fn as_it_comes(&mut self, call: u64) {
        self.as_they_come.insert(call);
    }

    /// A body whose first message has gone.
    pub(super) fn flow(&mut self, call: u64, flow: Flow) {
        self.flows.insert(call, flow);
        self.busy.push_back(call);
    }

    /// The flow of a body to which its writer hands something over; then [`Link::stir`].
    pub(super) fn flow_mut(&mut self, call: u64) -> Option<&mut Flow> {
        self.flows.get_mut(&call)
    }

    /// A flow has something to send again.
    pub(super) fn stir(&mut self, call: u64) {
        if !self.busy.contains(&call) {
            self.busy.push_back(call);
        }
    }

    /// Whether something waits to be sent.
    pub(super) fn is_busy(&self) -> bool {
        !self.outbox.is_empty() || !self.busy.is_empty() || !self.untold.is_empty()
    }

    /// Sends what can be sent of what waits, and asks to be rung when there is room for the rest.
    pub(super) fn pump(&mut self, member: &Arc<Member>) {
        loop {
            self.wants_slot = false;
            self.pump_words(member);
            self.pump_letters(member);
            self.pump_flows(member);
            if !self.is_busy() || self.wants_slot {
                return;
            }
            self.end.starve();
            if !self.may_go(member) {
                return;
            }
        }
    }

    /// What the peer is told of its bodies: first of all, for it may wait for that with all that it has.
    fn pump_words(&mut self, member: &Arc<Member>) {
        while let Some((&call, &let_go)) = self.untold.first_key_value() {
            match word(&mut self.end, member, call, let_go) {
                Err(Unsent::NoCredit) => return,
                Err(Unsent::NoSlot) => return self.wants_slot = true,
                Ok(()) | Err(_) => drop(self.untold.remove(&call)),
            }
        }
    }

    /// An answer that cannot be written goes as an error: its caller waits.
    fn pump_letters(&mut self, member: &Arc<Member>) {
        while let Some(letter) = self.outbox.front_mut() {
            let call = letter.envelope.call;
            match letter.advance(&mut self.end, member) {
                Ok(flow) => {
                    self.outbox.pop_front();
                    match flow {
                        Some(flow) => self.flow(call, flow),
                        None => self.answered(call),
                    }
                }
                Err(Progress::Hopeless) => match letter.excuse() {
                    Some(excuse) => *letter = excuse,
                    None => drop(self.outbox.pop_front()),
                },
                Err(why) => return self.wants_slot |= why == Progress::WantsSlot,
            }
        }
    }

    fn pump_flows(&mut self, member: &Arc<Member>) {
        let window = window(self.flows.len());
        for _ in 0..self.busy.len() {
            let Some(call) = self.busy.pop_front() else { return };
            let Some(flow) = self.flows.get_mut(&call) else { continue };
            match flow.advance(&mut self.end, member, window) {
                Progress::WantsWriter => {}
                Progress::WantsRoom => self.busy.push_back(call),
                Progress::WantsSlot => {
                    self.busy.push_back(call);
                    self.wants_slot = true;
                }
                Progress::Gone => {
                    self.flows.remove(&call);
                    self.answered(call);
                }
                Progress::Hopeless => drop(self.flows.remove(&call)),
            }
        }
    }

    /// The last part of an answer has gone that began before it was complete.
    fn answered(&mut self, call: u64) {
        if self.taken.get(&call).is_some_and(|taken| taken.begun.is_some()) {
            self.settle(call, false);
        }
    }

    /// Nothing is owed for this call any more.
    pub(super) fn settle(&mut self, call: u64, broken: bool) {
        let Some(mut taken) = self.taken.remove(&call) else { return };
        taken.waker.take().into_iter().for_each(Waker::wake);
        self.break_part(call, CallError::BrokenOff);
        let took = Duration::from_nanos(clock::now().saturating_sub(taken.since));
        self.end.counters().closed(took, broken || taken.begun.is_some_and(|status| status >= 500));
    }

    /// Takes back what has not been sent of a call. Whether the peer had seen some of it, but not all.
    pub(super) fn give_up(&mut self, call: u64) -> bool {
        self.as_they_come.remove(&call);
        if !self.outbox.is_empty() {
            self.outbox.retain(|letter| letter.envelope.call != call || letter.envelope.kind == Kind::Cancel);
        }
        self.flows.remove(&call).is_some()
    }

    /// What to look at before sleeping.
    pub(super) fn ready(&mut self, member: &Arc<Member>) -> bool {
        let goes = self.is_busy() && !self.wants_slot && self.may_go(member);
        goes || self.end.ready() && !self.is_clogged()
    }

    fn may_go(&mut self, member: &Arc<Member>) -> bool {
        self.end.collect(); // what a strict peer has taken is no longer with it
        if (!self.outbox.is_empty() || !self.untold.is_empty()) && has_room(&mut self.end, false) {
            return true;
        }
        let Self { busy, flows, end, .. } = self;
        let window = window(flows.len());
        let mut due = |call: &u64| flows.get_mut(call).is_some_and(|flow| flow.may_go(member, window));
        has_room(end, true) && busy.iter().any(&mut due)
    }

    /// Whether nothing is owed to anybody here, from this side.
    pub(super) fn is_idle(&self) -> bool {
        self.outbox.is_empty() && self.flows.is_empty() && self.taken.is_empty() && self.parts.is_empty()
    }
}

/// Says how many messages of a body have been let go of.
fn word(end: &mut End, member: &Arc<Member>, call: u64, let_go: u64) -> Result<(), Unsent> {
    let draft = Draft::new(claim(member, envelope::body_at(0), 0)?);
    let envelope = Envelope { total: let_go, ..Envelope::new(Kind::Taken, call) };
    send(end, draft, envelope, &[], false)
}

/// The body of a message that is the only one.
fn whole(message: Message) -> Bytes {
    if message.body_len() == 0 { Bytes::new() } else { Bytes::from_owner(nearpath_shm::Payload::new(message)) }
}

fn append(assembly: &mut Assembly<First>, message: &Message) -> bool {
    assembly.grow(message.body_len() as usize).is_ok_and(|room| message.copy_body(room))
}
