//! What comes: answers to its calls, and calls of others.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use nearpath_shm::envelope::flag;
use nearpath_shm::{Envelope, Kind, Side};
use nearpath_types::Reason;

use super::super::link::{Came, Link};
use super::super::outbox::Letter;
use super::super::payload::Payload;
use super::super::rest::{Feed, News, Rest};
use super::super::words::{Answer, CallError, Incoming, Reply};
use super::answers::{answer_on, break_off, take_on};
use super::{Core, Outcome};
use crate::book::Call;
use crate::clock::Nanos;

/// To who sends more than a party takes whole (`Settings::largest_body`), or a head that is none.
const TOO_LARGE: &str = "the call's body is larger than the function takes in one piece (64 MiB unless it says otherwise; a function that reads \
                         its body as a stream takes any), or its head is faulty\n";

impl Core {
    pub(super) fn answered(&mut self, channel: u32, link: &mut Link, came: Came, now: Nanos) {
        let (call, outcome) = match came {
            Came::Whole(envelope, head, body) => (envelope.call, Ok(reply(link, &envelope, head, body, None))),
            Came::Begun(envelope, head, body, feed) => {
                if !self.book.owed(envelope.call, channel) || !self.book.waits(envelope.call) {
                    return feed.leave(); // it was given up, and its callee has been told
                }
                let rest = self.rest(channel, envelope.call, feed);
                self.book.begin(envelope.call, Ok(reply(link, &envelope, head, body.into(), Some(rest))));
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
    pub(super) fn settle(&mut self, channel: u32, link: &mut Link, call: Call, outcome: Option<Outcome>, now: Nanos) {
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

    pub(super) fn rest(&self, channel: u32, call: u64, feed: Arc<Feed>) -> Rest {
        Rest::new(feed, Arc::clone(&self.left), channel, call)
    }

    /// Nobody reads the rest of some bodies: the senders of answers are told, the parts of calls are let go. Of others a strict
    /// sender is told how far they have been read.
    pub(super) fn heed_readers(&mut self) {
        if !self.left.any() {
            return;
        }
        let News { left, let_go } = self.left.take();
        for (channel, call, let_go) in let_go {
            self.tell(channel, |link| link.tell(call, let_go));
        }
        for (channel, call) in left {
            let Some(link) = self.links.get(&channel).filter(|link| link.feeds(call)) else { continue };
            match link.side {
                Side::Caller => self.cancel(channel, call),
                Side::Callee if self.member.pool().is_own() => self.tell(channel, |link| link.tell_all(call)),
                Side::Callee => {}
            }
        }
    }

    fn tell(&mut self, channel: u32, what: impl FnOnce(&mut Link)) {
        let Some(link) = self.links.get_mut(&channel) else { return };
        what(link);
        link.pump(&self.member);
        self.unrung = true;
    }

    pub(super) fn called(&mut self, channel: u32, link: &mut Link, came: Came, now: Nanos) {
        match came {
            Came::Whole(envelope, head, body) => self.accept(channel, link, envelope, head, body, None, now),
            Came::Begun(envelope, head, body, feed) => {
                let rest = Some(self.rest(channel, envelope.call, feed));
                self.accept(channel, link, envelope, head, body.into(), rest, now);
            }
            Came::Cancelled(call, assembling) => self.cancelled(channel, link, call, assembling, now),
            Came::Bad(envelope) if envelope.kind == Kind::Call => {
                let answer = Answer::platform(Reason::BodyTooLarge, TOO_LARGE);
                take_on(link, envelope.call, now);
                answer_on(link, &self.member, envelope.call, answer, now);
            }
            Came::Bad(_) | Came::Part | Came::Ended(_) => {}
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one message, taken apart")]
    pub(super) fn accept(
        &mut self,
        channel: u32,
        link: &mut Link,
        envelope: Envelope,
        head: Vec<u8>,
        body: Payload,
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
    pub(super) fn cancelled(&mut self, channel: u32, link: &mut Link, call: u64, assembling: bool, now: Nanos) {
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
}

pub(super) fn reply(link: &Link, envelope: &Envelope, head: Vec<u8>, body: Payload, rest: Option<Rest>) -> Reply {
    let Envelope { status, reason, .. } = *envelope;
    Reply { status, reason, platform: envelope.has(flag::PLATFORM), from: link.instance, head, body, rest }
}
