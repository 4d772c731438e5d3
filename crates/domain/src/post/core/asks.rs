//! Calls and events that this party makes.

use std::task::{Poll, Waker};

use nearpath_shm::envelope::flag;
use nearpath_shm::{Envelope, Kind};

use super::super::link::Link;
use super::super::outbox::{Letter, Whole, begin};
use super::super::payload::{Draft, Load};
use super::super::words::{CallError, Published, Request, Unsent};
use super::{Core, Outcome};
use crate::book::{Call, Nobody, To};
use crate::clock::Nanos;

impl Core {
    /// A slot to write a body in; none when none is that large, or free.
    pub(in crate::post) fn draft(&mut self, bytes: usize) -> Option<Draft> {
        let claimed = Draft::claim(&self.member, &self.socket, bytes);
        claimed.or_else(|| if self.collect() > 0 { Draft::claim(&self.member, &self.socket, bytes) } else { None })
    }

    /// Sends a call, or the beginning of one. What the load is takes the place of the request's body.
    pub(in crate::post) fn call(
        &mut self,
        to: To<'_>,
        request: &Request<'_>,
        mut load: Load<'_>,
        whole: Whole,
        now: Nanos,
    ) -> Result<Call, Unsent> {
        let channel = self.choose(to)?;
        let call = self.book.open(channel, now, request.deadline);
        let envelope = Envelope { flags: flag::PARTS, ..asking(Kind::Call, call, request) };
        let sent = self.send(channel, envelope, request, &mut load, whole);
        match sent {
            Ok(()) => Ok(call),
            Err(why) => {
                self.book.unopen(call);
                Err(why)
            }
        }
    }

    /// The answer to a call that was just sent is read as it comes.
    pub(in crate::post) fn as_it_comes(&mut self, call: Call) {
        let link = self.book.channel(call).and_then(|channel| self.links.get_mut(&channel));
        link.into_iter().for_each(|link| link.as_it_comes(call));
    }

    /// Sends an event: nobody answers.
    pub(in crate::post) fn notify(
        &mut self,
        to: To<'_>,
        request: &Request<'_>,
        mut load: Load<'_>,
        now: Nanos,
    ) -> Result<(), Unsent> {
        let channel = self.choose(to)?;
        // A number of its own, so that its parts are told apart from those of calls.
        let call = self.book.open(channel, now, 0);
        self.book.unopen(call);
        self.send(channel, asking(Kind::Event, call, request), request, &mut load, Whole::Here)
    }

    /// Sends an event to one instance of each function that subscribes.
    pub(in crate::post) fn publish(&mut self, topic: &str, request: &Request<'_>, now: Nanos) -> Published {
        let mut fields = vec![(":name", topic.as_bytes())];
        fields.extend(request.fields.iter().filter(|(name, _)| *name != ":name"));
        let request = Request { fields: &fields, ..request.clone() };
        let mut published = Published::default();
        for function in self.book.subscribers(topic) {
            match self.notify(To::Subscriber(&function), &request, Load::Kept(&request.body), now) {
                Ok(()) => published.sent += 1,
                Err(_) => published.missed += 1,
            }
        }
        published
    }

    /// Whether a call to the function would not fail for want of credit; else `waker` is told when that has changed.
    #[cfg(feature = "tokio")]
    pub(in crate::post) fn has_credit(&mut self, function: &nearpath_types::FunctionId, waker: &Waker) -> bool {
        let Self { book, links, .. } = self;
        let mut asked = book.channels(function).iter(); // now too: the driver may sleep already
        let asked = asked.any(|channel| links.get_mut(channel).is_some_and(Link::has_credit_or_starves));
        let there = asked || self.may_send(function);
        if !there {
            self.starved.push((function.clone(), waker.clone()));
        }
        there
    }

    /// Whether a call to the function would not fail for want of credit.
    pub(in crate::post) fn may_send(&mut self, function: &nearpath_types::FunctionId) -> bool {
        let Self { book, links, .. } = self;
        let channels = book.channels(function);
        channels.is_empty() || channels.iter().any(|channel| links.get_mut(channel).is_some_and(Link::has_credit))
    }

    /// Wakes those for whom there is credit again. All of them: whoever comes too late asks once more.
    #[cfg(feature = "tokio")]
    pub(super) fn feed(&mut self) {
        for (function, waker) in std::mem::take(&mut self.starved) {
            match self.may_send(&function) {
                true => waker.wake(),
                false => self.starved.push((function, waker)),
            }
        }
    }

    pub(super) fn choose(&mut self, to: To<'_>) -> Result<u32, Unsent> {
        let links = &mut self.links;
        let credit = |channel| links.get_mut(&channel).is_some_and(Link::has_credit);
        self.book.choose(to, credit).map_err(|nobody| match nobody {
            Nobody::Unknown => Unsent::NoPeer,
            Nobody::Busy => Unsent::NoCredit,
            Nobody::NoChannel(lack) => Unsent::NoChannel(lack),
        })
    }

    pub(super) fn send(
        &mut self,
        channel: u32,
        envelope: Envelope,
        request: &Request<'_>,
        load: &mut Load<'_>,
        whole: Whole,
    ) -> Result<(), Unsent> {
        let link = self.links.get_mut(&channel).ok_or(Unsent::NoPeer)?;
        let mut flow = begin(&mut link.end, &self.member, envelope, request.fields, load, whole);
        if matches!(flow, Err(Unsent::NoSlot)) && self.collect() > 0 {
            let link = self.links.get_mut(&channel).ok_or(Unsent::NoPeer)?;
            flow = begin(&mut link.end, &self.member, envelope, request.fields, load, whole);
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

    /// In a strict domain: frees the slots of what peers have taken since the last turn. How many.
    pub(super) fn collect(&mut self) -> u32 {
        self.links.values_mut().map(|link| link.end.collect()).sum()
    }

    /// The outcome of a call, once.
    pub(in crate::post) fn poll(&mut self, call: Call, waker: Option<&Waker>) -> Poll<Outcome> {
        self.book.poll(call, waker).map(|outcome| outcome.unwrap_or(Err(CallError::Died)))
    }

    /// Nobody wants the outcome any more.
    pub(in crate::post) fn leave(&mut self, call: Call) {
        if let Some(channel) = self.book.leave(call) {
            self.cancel(channel, call);
        }
    }

    pub(in crate::post) fn cancel(&mut self, channel: u32, call: Call) {
        let Some(link) = self.links.get_mut(&channel) else { return };
        link.give_up(call);
        link.outbox.push_back(Letter::cancel(call));
        link.pump(&self.member);
        self.unrung = true;
    }
}

pub(super) fn asking(kind: Kind, call: u64, request: &Request<'_>) -> Envelope {
    let Request { deadline, trace, span, .. } = *request;
    Envelope { deadline, trace, span, ..Envelope::new(kind, call) }
}
