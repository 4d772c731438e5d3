//! The party itself, without a way to wait: what both drivers turn.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use nearpath_shm::envelope::flag;
use nearpath_shm::{Desk, Envelope, Kind, Member, Side};

use super::flow::{Flow, Ticket};
use super::inbox::Inbox;
use super::join::{Joined, Settings};
use super::link::{Came, Link, Taken, Taking};
use super::outbox::{Letter, Whole, begin};
use super::rest::{Feed, Left, Rest};
use super::words::{Answer, CallError, Incoming, NotWanted, Published, Reply, Request, Unsent};
use crate::book::{Book, Call, Nobody, To};
use crate::clock::Nanos;
use crate::outflow::Outflow;
use crate::packet;
use crate::protocol::FromParty;

/// How long to wait for somebody to release a slot: nobody rings for that.
const SLOT_RETRY: Duration = Duration::from_millis(1);

pub(super) type Outcome = Result<Reply, CallError>;
type Begun = Result<Option<Flow>, Unsent>;

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
    left: Arc<Left>,
    settings: Settings,
    pub(super) mail: u32,
    /// Something came on the socket that has to be seen to: the node hung up.
    pub(super) hung_up: bool,
    /// Channels that ended before the node said so.
    pub(super) ended: Vec<u32>,
    /// Something was sent, and its receivers have not been rung.
    pub(super) unrung: bool,
    /// Tasks that wait for credit.
    #[cfg(feature = "tokio")]
    starved: Vec<(nearpath_types::FunctionId, Waker)>,
}

impl Core {
    pub(super) fn new(joined: Joined, settings: Settings) -> Self {
        let Joined { socket, desk, member, inbox, .. } = joined;
        let own = match &inbox {
            Some(inbox) => desk.knocker().over(inbox.wire.clone(), 0),
            None => desk.knocker(),
        };
        let seed = u64::from(member.party().get()) << 32 ^ crate::clock::now();
        Self {
            mail: desk.mail().wrapping_sub(1), // what came after the welcome is looked for at the first turn
            left: Left::new(own),
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
            unrung: false,
            #[cfg(feature = "tokio")]
            starved: Vec::new(),
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

    /// Sends a call, or the beginning of one.
    pub(super) fn call(&mut self, to: To<'_>, request: &Request<'_>, whole: Whole, now: Nanos) -> Result<Call, Unsent> {
        let channel = self.choose(to)?;
        let call = self.book.open(channel, now, request.deadline);
        let envelope = Envelope { flags: flag::PARTS, ..asking(Kind::Call, call, request) };
        let sent = self.send(channel, envelope, request, whole);
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
        self.send(channel, asking(Kind::Event, call, request), request, Whole::Here)
    }

    /// Sends an event to one instance of each function that subscribes.
    pub(super) fn publish(&mut self, topic: &str, request: &Request<'_>, now: Nanos) -> Published {
        let mut fields = vec![(":name", topic.as_bytes())];
        fields.extend(request.fields.iter().filter(|(name, _)| *name != ":name"));
        let request = Request { fields: &fields, ..request.clone() };
        let mut published = Published::default();
        for function in self.book.subscribers(topic) {
            match self.notify(To::Subscriber(&function), &request, now) {
                Ok(()) => published.sent += 1,
                Err(_) => published.missed += 1,
            }
        }
        published
    }

    /// Whether a call to the function would not fail for want of credit; else `waker` is told when that has changed.
    #[cfg(feature = "tokio")]
    pub(super) fn has_credit(&mut self, function: &nearpath_types::FunctionId, waker: &Waker) -> bool {
        let there = self.may_send(function);
        if !there {
            self.starved.push((function.clone(), waker.clone()));
        }
        there
    }

    #[cfg(feature = "tokio")]
    fn may_send(&mut self, function: &nearpath_types::FunctionId) -> bool {
        let Self { book, links, .. } = self;
        let channels = book.channels(function);
        channels.is_empty() || channels.iter().any(|channel| links.get_mut(channel).is_some_and(has_credit))
    }

    /// Wakes those for whom there is credit again. All of them: whoever comes too late asks once more.
    #[cfg(feature = "tokio")]
    fn feed(&mut self) {
        for (function, waker) in std::mem::take(&mut self.starved) {
            match self.may_send(&function) {
                true => waker.wake(),
                false => self.starved.push((function, waker)),
            }
        }
    }

    fn choose(&mut self, to: To<'_>) -> Result<u32, Unsent> {
        let links = &mut self.links;
        let credit = |channel| links.get_mut(&channel).is_some_and(has_credit);
        self.book.choose(to, credit).map_err(|nobody| match nobody {
            Nobody::Unknown => Unsent::NoPeer,
            Nobody::Busy => Unsent::NoCredit,
        })
    }

    fn send(&mut self, channel: u32, envelope: Envelope, request: &Request<'_>, whole: Whole) -> Result<(), Unsent> {
        let mut flow = self.begin(channel, envelope, request, whole);
        if matches!(flow, Err(Unsent::NoSlot)) && self.collect() > 0 {
            flow = self.begin(channel, envelope, request, whole);
        }
        let (flow, link) = (flow?, self.links.get_mut(&channel).ok_or(Unsent::NoPeer)?);
        if envelope.kind == Kind::Call {
            link.end.counters().opened();
        }
        if let Some(flow) = flow {
            link.flow(envelope.call, flow);
            link.pump(&self.member);
        }
        self.unrung = true;
        Ok(())
    }

    fn begin(&mut self, channel: u32, envelope: Envelope, request: &Request<'_>, whole: Whole) -> Begun {
        let link = self.links.get_mut(&channel).ok_or(Unsent::NoPeer)?;
        begin(&mut link.end, &self.member, envelope, request.fields, &request.body, whole)
    }

    /// In a strict domain: frees the slots of what peers have taken since the last turn. How many.
    fn collect(&mut self) -> u32 {
        self.links.values_mut().map(|link| link.end.collect()).sum()
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

    pub(super) fn cancel(&mut self, channel: u32, call: Call) {
        let Some(link) = self.links.get_mut(&channel) else { return };
        link.give_up(call);
        link.outbox.push_back(Letter::cancel(call));
        link.pump(&self.member);
        self.unrung = true;
    }

    /// Rings everybody for whom something was sent. Whoever sends calls this, or turns, once its batch is complete: a bell
    /// costs a system call, and its receiver may take the processor at once.
    pub(super) fn ring(&mut self) {
        if std::mem::take(&mut self.unrung) {
            self.links.values_mut().for_each(|link| link.end.flush());
        }
    }

    /// Where the answer is expected from, for spinning.
    pub(super) fn core_of(&self, call: Call) -> u32 {
        let link = self.book.channel(call).and_then(|channel| self.links.get(&channel));
        link.map_or(0, |link| link.end.desk().core())
    }

    /// Answers a call that came in. Nothing happens when the caller has gone.
    pub(super) fn answer(&mut self, channel: u32, call: u64, answer: Answer, now: Nanos) {
        if let Some(link) = self.links.get_mut(&channel) {
            if link.taken.get(&call).is_some_and(|taken| taken.begun.is_some()) {
                break_off(link, call); // it had begun, and was not finished
                link.pump(&self.member);
            } else {
                answer_on(link, &self.member, call, answer, now);
            }
            self.unrung = true;
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

    /// Begins an answer of which more will be handed over; false when nobody wants it.
    pub(super) fn begin_answer(&mut self, channel: u32, call: u64, answer: Answer, total: Option<u64>) -> bool {
        let Some(link) = self.links.get_mut(&channel) else { return false };
        let Some(taken) = link.taken.get_mut(&call).filter(|taken| !taken.cancelled && taken.begun.is_none()) else {
            return false;
        };
        taken.begun = Some(answer.status);
        send_answer(link, &self.member, call, answer, Whole::Open(total));
        self.unrung = true;
        true
    }

    /// Whether the writer of a body can hand over its next piece; else it is told when it can.
    pub(super) fn poll_room(&mut self, channel: u32, call: u64, cx: &mut Context<'_>) -> Poll<Result<(), NotWanted>> {
        let Some(link) = self.links.get_mut(&channel) else { return Poll::Ready(Err(NotWanted)) };
        if let Some(flow) = link.flow_mut(call) {
            return flow.out.poll_room(cx.waker()).map(Ok);
        }
        match link.outbox.iter_mut().find(|letter| letter.envelope.call == call && letter.is_open()) {
            Some(letter) => {
                letter.writer = Some(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(Err(NotWanted)),
        }
    }

    /// Whether the next piece can be handed over.
    pub(super) fn has_room(&mut self, channel: u32, call: u64) -> Result<bool, NotWanted> {
        match self.poll_room(channel, call, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(room) => room.map(|()| true),
            Poll::Pending => Ok(false),
        }
    }

    /// Hands the next piece over. Only when there is room.
    pub(super) fn hand(&mut self, channel: u32, call: u64, piece: Bytes) -> Result<(), NotWanted> {
        self.stir(channel, call, |out| out.hand(piece))
    }

    fn stir(&mut self, channel: u32, call: u64, act: impl FnOnce(&mut Outflow<Ticket>)) -> Result<(), NotWanted> {
        let link = self.links.get_mut(&channel).ok_or(NotWanted)?;
        act(&mut link.flow_mut(call).ok_or(NotWanted)?.out);
        link.stir(call);
        link.pump(&self.member);
        self.unrung = true;
        Ok(())
    }

    /// Hands the last piece over.
    pub(super) fn end(&mut self, channel: u32, call: u64, piece: Bytes) {
        let _ = self.stir(channel, call, |out| {
            out.hand(piece);
            out.close();
        });
        self.wind_up();
    }

    /// The body that was begun is complete.
    pub(super) fn finish(&mut self, channel: u32, call: u64) {
        if self.stir(channel, call, Outflow::close).is_err() {
            let link = self.links.get_mut(&channel);
            let letter = link.and_then(|link| link.outbox.iter_mut().find(|letter| letter.envelope.call == call));
            letter.into_iter().for_each(Letter::close);
        }
        self.wind_up();
    }

    /// The body that was begun will not be completed: the peer is told.
    pub(super) fn abort(&mut self, channel: u32, call: u64) {
        let Some(link) = self.links.get_mut(&channel) else { return };
        let open = link.flow_mut(call).is_some() || link.outbox.iter().any(|letter| letter.envelope.call == call);
        match link.side {
            Side::Caller if open => {
                link.disrupt(call, CallError::BrokenOff);
                self.cancel(channel, call);
                self.book.expire(call, Err(CallError::BrokenOff));
            }
            Side::Callee if open => {
                break_off(link, call);
                link.pump(&self.member);
                self.unrung = true;
            }
            _ => {}
        }
        self.wind_up();
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
        self.unrung = false;
        self.heed_readers();
        while let Some(call) = self.book.due(now) {
            if let Some(channel) = self.book.expire(call, Err(CallError::Timeout)) {
                self.cancel(channel, call);
            }
        }
        self.ring();
        self.wind_up();
        #[cfg(feature = "tokio")]
        self.feed();
    }

    fn turn_link(&mut self, channel: u32, link: &mut Link, now: Nanos) {
        // What a strict peer sends is copied at once: only a body that is put together here has a bound here.
        let streams = self.settings.streams && !self.member.pool().is_own();
        let taking = Taking { bound: self.settings.largest_body, streams };
        link.take(taking, |link, came| match link.side {
            Side::Caller => self.answered(channel, link, came, now),
            Side::Callee => self.called(channel, link, came, now),
        });
        if link.is_busy() {
            link.end.collect(); // before its window is looked at
            link.pump(&self.member);
        }
        link.end.flush();
    }

    fn answered(&mut self, channel: u32, link: &mut Link, came: Came, now: Nanos) {
        let (call, outcome) = match came {
            Came::Whole(envelope, head, body) => (envelope.call, Ok(reply(link, &envelope, head, body, None))),
            Came::Begun(envelope, head, body, feed) => {
                if !self.book.owed(envelope.call, channel) || !self.book.waits(envelope.call) {
                    return feed.leave(); // it was given up, and its callee has been told
                }
                let rest = self.rest(channel, envelope.call, feed);
                self.book.begin(envelope.call, Ok(reply(link, &envelope, head, body, Some(rest))));
                return;
            }
            Came::Ended(call) => return self.settle(channel, link, call, None, now),
            Came::Cancelled(call, _) => (call, Err(CallError::BrokenOff)),
            Came::Bad(envelope) => (envelope.call, Err(CallError::BadAnswer(self.settings.largest_body))),
            Came::Part => return,
        };
        self.settle(channel, link, call, Some(outcome), now);
    }

    /// Nothing more comes for a call. `outcome`: nothing when its answer had begun before.
    fn settle(&mut self, channel: u32, link: &mut Link, call: Call, outcome: Option<Outcome>, now: Nanos) {
        if !self.book.owed(call, channel) {
            return; // a second answer, or one to somebody else's call
        }
        link.give_up(call);
        let failed = outcome.as_ref().is_some_and(|outcome| !matches!(outcome, Ok(reply) if reply.status < 500));
        let begun = outcome.is_none();
        if let Some(settled) = self.book.settle(call, outcome.unwrap_or(Err(CallError::Died))) {
            let took = Duration::from_nanos(now.saturating_sub(settled.began));
            link.end.counters().closed(took, failed || !begun && !settled.wanted);
        }
    }

    fn rest(&self, channel: u32, call: u64, feed: Arc<Feed>) -> Rest {
        Rest::new(feed, Arc::clone(&self.left), channel, call)
    }

    /// Nobody reads the rest of some bodies: the senders of answers are told, the parts of calls are let go.
    fn heed_readers(&mut self) {
        if !self.left.any() {
            return;
        }
        for (channel, call) in self.left.take() {
            let link = self.links.get(&channel);
            if link.is_some_and(|link| link.side == Side::Caller && link.feeds(call)) {
                self.cancel(channel, call);
            }
        }
    }

    fn called(&mut self, channel: u32, link: &mut Link, came: Came, now: Nanos) {
        match came {
            Came::Whole(envelope, head, body) => self.accept(channel, link, envelope, head, body, None, now),
            Came::Begun(envelope, head, body, feed) => {
                let rest = Some(self.rest(channel, envelope.call, feed));
                self.accept(channel, link, envelope, head, body, rest, now);
            }
            Came::Cancelled(call, assembling) => self.cancelled(channel, link, call, assembling, now),
            Came::Bad(envelope) if envelope.kind == Kind::Call => {
                let answer = Answer::platform(413, "the call's body is too large, or its head is faulty\n");
                take_on(link, envelope.call, now);
                answer_on(link, &self.member, envelope.call, answer, now);
            }
            Came::Bad(_) | Came::Part | Came::Ended(_) => {}
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one message, taken apart")]
    fn accept(
        &mut self,
        channel: u32,
        link: &mut Link,
        envelope: Envelope,
        head: Vec<u8>,
        body: Bytes,
        rest: Option<Rest>,
        now: Nanos,
    ) {
        let event = envelope.kind == Kind::Event;
        let Envelope { deadline, trace, span, call, .. } = envelope;
        if !event && !take_on(link, call, now) {
            return link.break_off(); // the same number twice
        }
        let caller = Arc::clone(&link.caller);
        self.incoming.push_back(Incoming { caller, event, deadline, trace, span, head, body, rest, channel, call });
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
        } else if link.taken.get(&call).is_some_and(|taken| taken.begun.is_some()) {
            break_off(link, call);
        } else if let Some(taken) = link.taken.get_mut(&call) {
            taken.cancelled = true;
            taken.waker.take().into_iter().for_each(Waker::wake);
        } else if link.give_up(call) {
            link.outbox.push_back(Letter::cancel(call)); // its answer was on its way in parts
        }
    }

    /// Tells peers that this party sleeps; false when there is something to do.
    #[cfg(feature = "tokio")]
    pub(super) fn announce(&mut self) -> bool {
        let Self { desk, links, mail, member, left, inbox, .. } = self;
        let ready = || *mail != desk.mail() || left.any() || links.values_mut().any(|link| link.ready(member));
        let sleeps = inbox.is_some() || desk.event().is_some();
        sleeps && desk.announce(ready)
    }

    /// Sleeps at the desk until there is something to do.
    pub(super) fn wait(&mut self, peer: u32, timeout: Option<Duration>) {
        let Self { desk, links, mail, member, left, inbox, .. } = self;
        let letters = desk.letters();
        let mut ready = || {
            *mail != letters.load(Ordering::Acquire) || left.any() || links.values_mut().any(|link| link.ready(member))
        };
        match inbox {
            None => desk.wait(peer, timeout, ready),
            Some(inbox) if desk.announce(&mut ready) => {
                inbox.wait(timeout);
                desk.rise();
            }
            Some(_) => {}
        }
    }

    /// When to turn again, if nobody rings.
    pub(super) fn next_turn(&mut self, now: Nanos) -> Option<Nanos> {
        let short = self.links.values().any(|link| link.wants_slot);
        let retry = short.then(|| now + SLOT_RETRY.as_nanos() as u64);
        [self.book.next_deadline(), retry].into_iter().flatten().min()
    }
}

fn has_credit(link: &mut Link) -> bool {
    !link.closed && link.outbox.is_empty() && link.end.credits() > 0
}

fn asking(kind: Kind, call: u64, request: &Request<'_>) -> Envelope {
    let Request { deadline, trace, span, .. } = *request;
    Envelope { deadline, trace, span, ..Envelope::new(kind, call) }
}

/// Owes an answer; false when it is owed already.
fn take_on(link: &mut Link, call: u64, now: Nanos) -> bool {
    link.end.counters().opened();
    link.taken.insert(call, Taken { since: now, cancelled: false, begun: None, waker: None }).is_none()
}

fn answer_on(link: &mut Link, member: &Arc<Member>, call: u64, mut answer: Answer, now: Nanos) {
    let Some(taken) = link.taken.remove(&call) else { return };
    link.break_part(call, CallError::BrokenOff);
    if taken.cancelled {
        answer = Answer { status: 499, platform: true, ..Answer::default() };
    }
    let took = Duration::from_nanos(now.saturating_sub(taken.since));
    link.end.counters().closed(took, answer.status >= 500 || taken.cancelled);
    send_answer(link, member, call, answer, Whole::Here);
}

/// Sends it now if nothing waits before it; else when there is room.
fn send_answer(link: &mut Link, member: &Arc<Member>, call: u64, answer: Answer, whole: Whole) {
    let flags = if answer.platform { flag::PLATFORM } else { 0 };
    let Answer { status, reason, fields, body, .. } = answer;
    let envelope = Envelope { flags, status, reason, ..Envelope::new(Kind::Answer, call) };
    if link.outbox.is_empty() {
        let borrowed: Vec<(&str, &[u8])> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        match begin(&mut link.end, member, envelope, &borrowed, &body, whole) {
            Ok(None) => return,
            Ok(Some(flow)) => link.flow(call, flow),
            Err(Unsent::NoCredit | Unsent::NoSlot | Unsent::Head) => {
                link.outbox.push_back(Letter::new(envelope, fields, body, whole))
            }
            Err(_) => return,
        }
    } else {
        link.outbox.push_back(Letter::new(envelope, fields, body, whole));
    }
    link.pump(member);
}

/// Ends an answer that had begun: with a `cancel` in place of the rest, or as an error if nothing of it has gone.
fn break_off(link: &mut Link, call: u64) {
    let seen = link.give_up(call);
    let gave_up = Envelope { status: 499, flags: flag::PLATFORM, ..Envelope::new(Kind::Answer, call) };
    link.outbox.push_back(match seen {
        true => Letter::cancel(call),
        false => Letter::new(gave_up, Vec::new(), Bytes::new(), Whole::Here),
    });
    link.settle(call, true);
}

fn reply(link: &Link, envelope: &Envelope, head: Vec<u8>, body: Bytes, rest: Option<Rest>) -> Reply {
    let Envelope { status, reason, .. } = *envelope;
    Reply { status, reason, platform: envelope.has(flag::PLATFORM), from: link.instance, head, body, rest }
}
