//! The party itself, without a way to wait: what both drivers turn.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use nearpath_shm::envelope::flag;
use nearpath_shm::{Desk, Envelope, Kind, Member, Side};

use super::inbox::Inbox;
use super::join::{Joined, Settings};
use super::link::{Came, Link, Taken};
use super::outbox::{Letter, begin};
use super::words::{Answer, CallError, Incoming, Reply, Request, Unsent};
use crate::book::{Book, Call, Nobody, To};
use crate::clock::Nanos;
use crate::packet;
use crate::protocol::FromParty;

/// How long to wait for somebody to release a slot: nobody rings for that.
const SLOT_RETRY: Duration = Duration::from_millis(1);

pub(super) type Outcome = Result<Reply, CallError>;

/// See the module.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) desk: Desk,
    pub(super) socket: OwnedFd,
    pub(super) book: Book<Outcome>,
    pub(super) incoming: VecDeque<Incoming>,
    pub(super) member: Arc<Member>,
    pub(super) links: BTreeMap<u32, Link>,
    /// There when the kernel brings the descriptors.
    pub(super) inbox: Option<Inbox>,
    settings: Settings,
    pub(super) mail: u32,
    /// Something came on the socket that has to be seen to: the node hung up.
    pub(super) hung_up: bool,
    /// Channels that ended before the node said so.
    pub(super) ended: Vec<u32>,
}

impl Core {
    pub(super) fn new(joined: Joined, settings: Settings) -> Self {
        let Joined { socket, desk, member, inbox, .. } = joined;
        let seed = u64::from(member.party().get()) << 32 ^ crate::clock::now();
        Self {
            mail: desk.mail().wrapping_sub(1), // what came after the welcome is looked for at the first turn
            desk,
            socket,
            member,
            inbox,
            settings,
            book: Book::new(seed),
            incoming: VecDeque::new(),
            links: BTreeMap::new(),
            hung_up: false,
            ended: Vec::new(),
        }
    }

    pub(super) fn say(&self, message: &FromParty) -> io::Result<()> {
        packet::send(&self.socket, message, &[])
    }

    /// Whether the node has hung up: no new peers, nobody reclaims.
    pub(super) fn hung_up(&self) -> bool {
        self.hung_up
    }

    /// Whether the node has closed the socket that brings the descriptors.
    #[cfg(feature = "tokio")]
    pub(super) fn is_cut_off(&self) -> bool {
        self.inbox.as_ref().is_some_and(|inbox| inbox.closed)
    }

    pub(super) fn functions(&self) -> Vec<nearpath_types::FunctionId> {
        self.book.functions().cloned().collect()
    }

    /// Sends a call.
    pub(super) fn call(&mut self, to: To<'_>, request: &Request<'_>, now: Nanos) -> Result<Call, Unsent> {
        let channel = self.choose(to)?;
        let call = self.book.open(channel, now, request.deadline);
        let envelope = Envelope { flags: flag::PARTS, ..asking(Kind::Call, call, request) };
        let sent = self.send(channel, envelope, request);
        match sent {
            Ok(()) => Ok(call),
            Err(why) => {
                self.book.unopen(call);
                Err(why)
            }
        }
    }

    /// Sends an event: nobody answers.
    pub(super) fn notify(&mut self, to: To<'_>, request: &Request<'_>, now: Nanos) -> Result<(), Unsent> {
        let channel = self.choose(to)?;
        // A number of its own, so that its parts are told apart from those of calls.
        let call = self.book.open(channel, now, 0);
        self.book.unopen(call);
        self.send(channel, asking(Kind::Event, call, request), request)
    }

    fn choose(&mut self, to: To<'_>) -> Result<u32, Unsent> {
        let links = &mut self.links;
        let credit = |channel| {
            let usable = |link: &mut Link| !link.closed && link.end.credits() > 0 && link.outbox.is_empty();
            links.get_mut(&channel).is_some_and(usable)
        };
        self.book.choose(to, credit).map_err(|nobody| match nobody {
            Nobody::Unknown => Unsent::NoPeer,
            Nobody::Busy => Unsent::NoCredit,
        })
    }

    fn send(&mut self, channel: u32, envelope: Envelope, request: &Request<'_>) -> Result<(), Unsent> {
        let link = self.links.get_mut(&channel).ok_or(Unsent::NoPeer)?;
        let sent = begin(&mut link.end, &self.member, envelope, request.fields, &request.body)?;
        if envelope.kind == Kind::Call {
            link.end.counters().opened();
        }
        if sent < request.body.len() {
            link.outbox.push_back(Letter::rest(envelope, request.body.clone(), sent));
            link.pump(&self.member);
        }
        link.end.flush();
        Ok(())
    }

    /// The outcome of a call, once.
    pub(super) fn poll(&mut self, call: Call, waker: Option<&Waker>) -> Poll<Outcome> {
        self.book.poll(call, waker).map(|outcome| outcome.unwrap_or(Err(CallError::Died)))
    }

    /// Nobody wants the outcome any more.
    pub(super) fn leave(&mut self, call: Call) {
        if let Some(channel) = self.book.leave(call) {
            self.cancel(channel, call);
        }
    }

    fn cancel(&mut self, channel: u32, call: Call) {
        let Some(link) = self.links.get_mut(&channel) else { return };
        link.give_up(call);
        link.outbox.push_back(Letter::whole(Envelope::new(Kind::Cancel, call), Vec::new(), Bytes::new()));
        link.pump(&self.member);
        link.end.flush();
    }

    /// Where the answer is expected from, for spinning.
    pub(super) fn core_of(&self, call: Call) -> u32 {
        let link = self.book.channel(call).and_then(|channel| self.links.get(&channel));
        link.map_or(0, |link| link.end.desk().core())
    }

    /// Answers a call that came in. Nothing happens when the caller has gone.
    pub(super) fn answer(&mut self, channel: u32, call: u64, answer: Answer, now: Nanos) {
        if let Some(link) = self.links.get_mut(&channel) {
            answer_on(link, &self.member, call, answer, now);
            link.end.flush();
        }
        self.wind_up();
    }

    #[cfg(feature = "tokio")]
    /// Whether the caller has given the call up, or is gone; else `waker` is told when it does.
    pub(super) fn given_up(&mut self, channel: u32, call: u64, waker: &Waker) -> bool {
        let taken = self.links.get_mut(&channel).and_then(|link| link.taken.get_mut(&call));
        let Some(taken) = taken.filter(|taken| !taken.cancelled) else { return true };
        taken.waker = Some(waker.clone());
        false
    }

    /// Takes what has come, sends what has room, ends what is due.
    pub(super) fn turn(&mut self, now: Nanos) {
        self.read_mail();
        self.read_inbox();
        let mut links = std::mem::take(&mut self.links);
        for (&channel, link) in &mut links {
            self.turn_link(channel, link, now);
        }
        self.links = links;
        while let Some(call) = self.book.due(now) {
            if let Some(channel) = self.book.expire(call, Err(CallError::Timeout)) {
                self.cancel(channel, call);
            }
        }
        self.wind_up();
    }

    fn turn_link(&mut self, channel: u32, link: &mut Link, now: Nanos) {
        let bound = self.settings.largest_body;
        link.take(bound, |link, came| match link.side {
            Side::Caller => self.answered(channel, link, came, now),
            Side::Callee => self.called(channel, link, came, now),
        });
        if !link.outbox.is_empty() {
            link.pump(&self.member);
        }
        link.end.flush();
    }

    fn answered(&mut self, channel: u32, link: &mut Link, came: Came, now: Nanos) {
        let (call, outcome) = match came {
            Came::Whole(envelope, head, body) => {
                let platform = envelope.has(flag::PLATFORM);
                let Envelope { status, reason, call, .. } = envelope;
                (call, Ok(Reply { status, reason, platform, from: link.instance, head, body }))
            }
            Came::Cancelled(call, _) => (call, Err(CallError::BrokenOff)),
            Came::Bad(envelope) => (envelope.call, Err(CallError::BadAnswer(self.settings.largest_body))),
            Came::Part => return,
        };
        if !self.book.owed(call, channel) {
            return; // a second answer, or one to somebody else's call
        }
        link.give_up(call);
        let failed = !matches!(&outcome, Ok(reply) if reply.status < 500);
        if let Some(settled) = self.book.settle(call, outcome) {
            let took = Duration::from_nanos(now.saturating_sub(settled.began));
            link.end.counters().closed(took, failed || !settled.wanted);
        }
    }

    fn called(&mut self, channel: u32, link: &mut Link, came: Came, now: Nanos) {
        match came {
            Came::Whole(envelope, head, body) => self.accept(channel, link, envelope, head, body, now),
            Came::Cancelled(call, assembling) => self.cancelled(channel, link, call, assembling, now),
            Came::Bad(envelope) if envelope.kind == Kind::Call => {
                let answer = Answer::platform(413, "the call's body is too large, or its head is faulty\n");
                take_on(link, envelope.call, now);
                answer_on(link, &self.member, envelope.call, answer, now);
            }
            Came::Bad(_) | Came::Part => {}
        }
    }

    fn accept(&mut self, channel: u32, link: &mut Link, envelope: Envelope, head: Vec<u8>, body: Bytes, now: Nanos) {
        let event = envelope.kind == Kind::Event;
        let Envelope { deadline, trace, span, call, .. } = envelope;
        if !event && !take_on(link, call, now) {
            return link.break_off(); // the same number twice
        }
        let caller = Arc::clone(&link.caller);
        self.incoming.push_back(Incoming { caller, event, deadline, trace, span, head, body, channel, call });
    }

    /// Every call that was taken is answered, also one that was given up: its place among the caller's calls is free then.
    fn cancelled(&mut self, channel: u32, link: &mut Link, call: u64, assembling: bool, now: Nanos) {
        let queued = self.incoming.iter().position(|i| i.channel == channel && i.call == call && !i.event);
        if let Some(at) = queued {
            self.incoming.remove(at);
        }
        if assembling {
            take_on(link, call, now);
        }
        if assembling || queued.is_some() {
            let answer = Answer { status: 499, platform: true, ..Answer::default() };
            answer_on(link, &self.member, call, answer, now);
        } else if let Some(taken) = link.taken.get_mut(&call) {
            taken.cancelled = true;
            taken.waker.take().into_iter().for_each(Waker::wake);
        } else if link.give_up(call) {
            // Its answer was on its way in parts.
            link.outbox.push_back(Letter::whole(Envelope::new(Kind::Cancel, call), Vec::new(), Bytes::new()));
        }
    }

    /// Tells peers that this party sleeps; false when there is something to do.
    #[cfg(feature = "tokio")]
    pub(super) fn announce(&mut self) -> bool {
        let Self { desk, links, mail, inbox, .. } = self;
        let mut ready = || *mail != desk.mail() || links.values_mut().any(Link::ready);
        match inbox {
            Some(_) => !ready(), // the kernel tells of whatever comes from now on
            None => desk.event().is_some() && desk.announce(ready),
        }
    }

    /// Sleeps at the desk until there is something to do.
    pub(super) fn wait(&mut self, peer: u32, timeout: Option<Duration>) {
        let Self { desk, links, mail, inbox, .. } = self;
        let letters = desk.letters();
        let mut ready = || *mail != letters.load(Ordering::Acquire) || links.values_mut().any(Link::ready);
        match inbox {
            Some(inbox) => inbox.wait(timeout, ready()),
            None => desk.wait(peer, timeout, ready),
        }
    }

    /// When to turn again, if nobody rings.
    pub(super) fn next_turn(&mut self, now: Nanos) -> Option<Nanos> {
        let short = self.links.values().any(|link| link.wants_slot);
        let retry = short.then(|| now + SLOT_RETRY.as_nanos() as u64);
        [self.book.next_deadline(), retry].into_iter().flatten().min()
    }
}

fn asking(kind: Kind, call: u64, request: &Request<'_>) -> Envelope {
    let Request { deadline, trace, span, .. } = *request;
    Envelope { deadline, trace, span, ..Envelope::new(kind, call) }
}

/// Owes an answer; false when it is owed already.
fn take_on(link: &mut Link, call: u64, now: Nanos) -> bool {
    link.end.counters().opened();
    link.taken.insert(call, Taken { since: now, cancelled: false, waker: None }).is_none()
}

fn answer_on(link: &mut Link, member: &Arc<Member>, call: u64, mut answer: Answer, now: Nanos) {
    let Some(taken) = link.taken.remove(&call) else { return };
    if taken.cancelled {
        answer = Answer { status: 499, platform: true, ..Answer::default() };
    }
    let took = Duration::from_nanos(now.saturating_sub(taken.since));
    link.end.counters().closed(took, answer.status >= 500 || taken.cancelled);
    let flags = if answer.platform { flag::PLATFORM } else { 0 };
    let Answer { status, reason, fields, body, .. } = answer;
    let envelope = Envelope { flags, status, reason, ..Envelope::new(Kind::Answer, call) };
    post(link, member, envelope, fields, body);
}

/// Sends it now if nothing waits before it; else, or what is left of it, when there is room.
fn post(link: &mut Link, member: &Arc<Member>, envelope: Envelope, fields: Vec<super::OwnedField>, body: Bytes) {
    if link.outbox.is_empty() {
        let borrowed: Vec<(&str, &[u8])> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        match begin(&mut link.end, member, envelope, &borrowed, &body) {
            Ok(sent) if sent == body.len() => return,
            Ok(sent) => link.outbox.push_back(Letter::rest(envelope, body, sent)),
            Err(Unsent::NoCredit | Unsent::NoSlot | Unsent::Head) => {
                link.outbox.push_back(Letter::whole(envelope, fields, body))
            }
            Err(_) => return,
        }
    } else {
        link.outbox.push_back(Letter::whole(envelope, fields, body));
    }
    link.pump(member);
}
