//! One end of a channel: it sends into one ring, receives from the other, and rings its peer once a batch.

mod strict;
mod wired;

use std::sync::Arc;

use super::{Channel, NotSent, ReceiveFault, SendFault, Side, State};
use crate::counters::Counters;
use crate::descriptor::Descriptor;
use crate::desk::Knocker;
use crate::member::{Member, NotAccepted};
use crate::message::{Message, Outgoing};
use crate::ring::{Consumer, NotPushed, Poisoned, Producer};
use crate::sync::{Ordering, fence};
use crate::wire::Line;
use crate::word::Party;
use strict::Strict;

/// One party's end of a channel.
#[derive(Debug)]
pub struct End {
    side: Side,
    channel: Channel,
    producer: Producer,
    consumer: Consumer,
    member: Arc<Member>,
    peer: Party,
    desk: Knocker,
    counters: Counters,
    /// There when the domain is strict.
    strict: Option<Strict>,
    /// There when the kernel carries the descriptors.
    line: Option<Line>,
    pushed: bool,
    popped: bool,
}

impl End {
    pub(super) fn new(channel: &Channel, side: Side, member: Arc<Member>, peer: Party, desk: Knocker) -> Self {
        let (out, back) = match side {
            Side::Caller => (&channel.calls, &channel.answers),
            Side::Callee => (&channel.answers, &channel.calls),
        };
        Self {
            side,
            producer: Producer::new(out.clone(), 0),
            consumer: Consumer::new(back.clone(), 0),
            counters: Counters::new(channel.counters[side as usize].clone()),
            channel: channel.clone(),
            member,
            peer,
            desk,
            strict: None,
            line: None,
            pushed: false,
            popped: false,
        }
    }

    /// Hands a message over. The peer is rung by the next [`End::flush`].
    pub fn send(&mut self, message: Outgoing) -> Result<(), NotSent> {
        self.send_until(State::Open, message)
    }

    /// Hands over more of what is open, a part or a cancel: also when the channel is withdrawn.
    pub fn send_more(&mut self, message: Outgoing) -> Result<(), NotSent> {
        self.send_until(State::Withdrawn, message)
    }

    fn send_until(&mut self, last: State, message: Outgoing) -> Result<(), NotSent> {
        if let Err(why) = self.may_send(last) {
            return Err(NotSent { why, message: Some(message) });
        }
        if self.strict.is_some() {
            return self.send_own(message);
        }
        let Outgoing { lease, offset, length } = message;
        let offer = lease.offer(self.peer).map_err(|lost| NotSent { why: lost.into(), message: None })?;
        let descriptor = offer.descriptor(offset, length);
        match self.producer.push(descriptor) {
            Ok(()) => {
                self.line.as_mut().into_iter().for_each(|line| line.push(descriptor));
                offer.sent();
                self.counters.sent(length);
                self.pushed = true;
                Ok(())
            }
            Err(fault) => {
                let why = self.not_pushed(fault);
                Err(NotSent { why, message: offer.take_back().ok().map(|lease| Outgoing { lease, offset, length }) })
            }
        }
    }

    fn may_send(&self, last: State) -> Result<(), SendFault> {
        let (state, last) = (self.channel.state(), if self.side == Side::Callee { State::Withdrawn } else { last });
        if state <= last { Ok(()) } else { Err(SendFault::Closed(state)) }
    }

    fn not_pushed(&self, fault: NotPushed) -> SendFault {
        if let NotPushed::Poisoned(_) = fault {
            self.channel.close(State::Broken);
            return SendFault::Closed(State::Broken);
        }
        SendFault::Full
    }

    /// The next message, if there is one. What was sent before the channel was closed still comes, unless it is broken.
    pub fn receive(&mut self) -> Result<Option<Message>, ReceiveFault> {
        let state = self.channel.state();
        if state == State::Broken {
            return Err(ReceiveFault::Closed(state));
        }
        // What a wire brings is complete only up to the last look at it.
        let complete = self.line.as_ref().map_or(state, |line| line.seen);
        match self.take() {
            Ok(None) if complete > State::Withdrawn => Err(ReceiveFault::Closed(state)),
            Ok(message) => Ok(message),
            Err(ReceiveFault::Closed(state)) => Err(ReceiveFault::Closed(state)),
            // A dead peer's last offer may have been reclaimed before it was read: that is nobody's fault.
            Err(ReceiveFault::Refused(NotAccepted::NotOffered)) if state > State::Withdrawn => {
                Err(ReceiveFault::Closed(state))
            }
            Err(fault) => {
                self.channel.close(State::Broken);
                self.pushed = true; // the peer should hear of it
                Err(fault)
            }
        }
    }

    /// Closes the channel for a peer that broke the rules, and lets it know.
    pub fn break_off(&mut self) {
        self.channel.close(State::Broken);
        self.ring();
    }

    /// Wakes the peer.
    fn ring(&mut self) {
        match self.line.as_mut().filter(|line| !line.is_empty()) {
            None => drop(self.desk.knock()),
            Some(line) => {
                if line.flush().is_err() {
                    self.channel.close(State::Broken); // the wire is gone
                }
            }
        }
    }

    fn pop(&mut self) -> Result<Option<Descriptor>, ReceiveFault> {
        let Some(line) = &mut self.line else { return Ok(self.consumer.pop()?) };
        let Some(descriptor) = line.came.pop_front() else { return Ok(None) };
        // One that is in no ring was sent without a credit.
        self.consumer.pop()?.map(|_| Some(descriptor)).ok_or(ReceiveFault::Poisoned(Poisoned))
    }

    fn take(&mut self) -> Result<Option<Message>, ReceiveFault> {
        let Some(descriptor) = self.pop()? else { return Ok(None) };
        if let Some(strict) = &self.strict {
            let copy = strict.source.copy(&descriptor);
            return self.taken(copy);
        }
        let lease = self.member.accept(&descriptor, self.peer);
        self.consumer.commit(); // only now: see `ring`
        self.popped = true;
        Ok(Some(Message::read(lease?, &descriptor)?))
    }

    /// Whether [`End::receive`] has something to say. What to look at before sleeping.
    pub fn ready(&mut self) -> bool {
        let there = match &self.line {
            None => !self.consumer.is_empty(),
            Some(line) => !line.came.is_empty(),
        };
        there || self.channel.state() > State::Withdrawn
    }

    /// Ends a batch of sends and receives: rings the peer when there is something for it. In a closed channel it takes back
    /// what the peer will not take.
    pub fn flush(&mut self) {
        if self.pushed || self.popped {
            fence(Ordering::SeqCst);
        }
        let fed = self.popped && self.consumer.feeds_starving();
        if self.pushed || fed {
            self.ring();
        }
        if self.channel.state() > State::Withdrawn || self.strict.is_some() {
            self.recall();
        }
        (self.pushed, self.popped) = (false, false);
    }

    /// Frees what was sent and not taken; returns how many. By itself only after the peer's death. In a strict domain: frees what
    /// the peer will not look at any more.
    pub fn recall(&mut self) -> u32 {
        if self.strict.is_some() {
            return self.recall_own();
        }
        let (member, peer) = (&self.member, self.peer);
        self.producer.unconsumed().filter(|descriptor| member.recall(descriptor, peer)).count() as u32
    }

    /// Messages that can be sent now. A caller makes at most a ring's capacity of calls before it has answers.
    pub fn credits(&mut self) -> u32 {
        let room = self.producer.room().unwrap_or(0);
        match self.side {
            Side::Caller => room.min(self.channel.capacity().saturating_sub(self.counters.in_flight() as u32)),
            Side::Callee => room,
        }
    }

    /// Entries of the own ring that are free, whatever calls are open: what parts go by.
    pub fn room(&mut self) -> u32 {
        self.producer.room().unwrap_or(0)
    }

    /// Asks the peer to ring when it has taken something; true when the ring has room already. It rings once, and only who sleeps:
    /// so ask after saying so ([`crate::Desk::announce`]), before each sleep, and look at [`End::credits`] as well as at
    /// [`End::ready`] after that.
    pub fn starve(&mut self) -> bool {
        self.producer.starve().unwrap_or(true)
    }

    /// The counters of this side, for calls opened and closed.
    pub fn counters(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// The other party.
    pub fn peer(&self) -> Party {
        self.peer
    }

    /// The other party's desk.
    pub fn desk(&self) -> &Knocker {
        &self.desk
    }

    /// The channel.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }
}
