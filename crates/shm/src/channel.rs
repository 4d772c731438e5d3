//! Two rings between a caller and a callee, and the two ends that use them.
//!
//! An [`End`] does one after the other what the contract asks for: offer the slot, push the descriptor; pop, check, accept,
//! commit. [`End::flush`] makes the one fence of a batch, rings the peer, and takes back what a dead peer will not take.

mod strict;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::counters::{self, Counters, Reading};
use crate::descriptor::{Descriptor, Slot};
use crate::desk::Knocker;
use crate::envelope::BadEnvelope;
use crate::lease::Lost;
use crate::member::{Member, NotAccepted};
use crate::message::{Message, Outgoing};
use crate::region::{Access, Pages, Region};
use crate::ring::{self, Consumer, NotPushed, Poisoned, Producer, Ring};
use crate::shared::Shared;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::wire::{Line, Record, Wire};
use crate::word::Party;
use strict::Strict;

/// First bytes of a channel.
pub const MAGIC: [u8; 8] = *b"NPCHAN01";
/// Bytes before the first ring.
pub const HEADER: u64 = 4096;
/// Descriptors that a ring can have: a power of two.
pub const CAPACITIES: std::ops::RangeInclusive<u32> = 16..=4096;

/// Which end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Produces calls, consumes answers.
    Caller,
    /// Consumes calls, produces answers.
    Callee,
}

/// What became of a channel. Grows only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum State {
    /// In use.
    Open = 0,
    /// No new calls; those that are open come to their end.
    Withdrawn = 1,
    /// Nobody makes calls any more.
    CallerDead = 2,
    /// Nobody answers any more.
    CalleeDead = 3,
    /// One side broke the rules.
    Broken = 4,
}

impl State {
    fn of(number: u32) -> Self {
        match number {
            0 => Self::Open,
            1 => Self::Withdrawn,
            2 => Self::CallerDead,
            3 => Self::CalleeDead,
            _ => Self::Broken,
        }
    }
}

/// Offset of the ring of answers in a channel of this capacity.
pub const fn answers_at(capacity: u32) -> u64 {
    HEADER + ring_bytes(capacity)
}

/// Bytes of a whole channel.
pub const fn bytes(capacity: u32) -> u64 {
    HEADER + 2 * ring_bytes(capacity)
}

const fn ring_bytes(capacity: u32) -> u64 {
    (ring::HEADER as u64 + Descriptor::SIZE as u64 * capacity as u64).next_multiple_of(4096)
}

/// A mapped channel.
#[derive(Debug, Clone)]
pub struct Channel {
    region: Arc<Region>,
    closed: Shared<AtomicU32>,
    counters: [Shared<[AtomicU64]>; 2],
    calls: Ring,
    answers: Ring,
}

impl Channel {
    /// Makes one. For the node.
    pub fn create(capacity: u32) -> io::Result<Self> {
        if !CAPACITIES.contains(&capacity) || !capacity.is_power_of_two() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a ring has a power of two between 16 and 4096"));
        }
        let region = Region::create("nearpath-channel", bytes(capacity) as usize, Pages::Small)?;
        region.write(8, &capacity.to_le_bytes());
        region.write(0, &MAGIC);
        Self::with(region, capacity)
    }

    /// Maps one that the node made, of this capacity as the node told.
    pub fn open(fd: OwnedFd, capacity: u32) -> io::Result<Self> {
        let refused = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
        if !CAPACITIES.contains(&capacity) || !capacity.is_power_of_two() {
            return Err(refused("a ring has a power of two between 16 and 4096"));
        }
        let region = Region::open(fd, bytes(capacity) as usize, Access::Write)?;
        let mut header = [0; 12];
        if !region.read(0, &mut header) || header[..8] != MAGIC || header[8..] != capacity.to_le_bytes() {
            return Err(refused("the region is no channel of that capacity"));
        }
        Self::with(region, capacity)
    }

    fn with(region: Arc<Region>, capacity: u32) -> io::Result<Self> {
        let ring = |at: u64| {
            let cell = |offset: usize| region.cell(at + offset as u64);
            let header = [cell(0)?, cell(ring::HEAD_AT)?, cell(ring::STARVED_AT)?];
            Some(Ring::new(header, region.cells(at + ring::HEADER as u64, 2 * capacity as usize)?))
        };
        let all = || {
            let counters = [region.cells(64, counters::SIZE / 8)?, region.cells(192, counters::SIZE / 8)?];
            Some((region.cell(12)?, counters, ring(HEADER)?, ring(answers_at(capacity))?))
        };
        let (closed, counters, calls, answers) = all().ok_or_else(|| io::Error::other("the channel is too small"))?;
        Ok(Self { region, closed, counters, calls, answers })
    }

    /// Descriptors in each ring.
    pub fn capacity(&self) -> u32 {
        self.calls.capacity()
    }

    /// Whether it is open.
    pub fn state(&self) -> State {
        State::of(self.closed.load(Ordering::Acquire))
    }

    /// Closes it, or closes it further. Ring both desks after that. What the node reads of the pool after this comes after it:
    /// a party that offers a slot later sees that the channel is closed.
    pub fn close(&self, state: State) {
        self.closed.fetch_max(state as u32, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// What one side counted.
    pub fn counted(&self, by: Side) -> Reading {
        Reading::of(&self.counters[by as usize])
    }

    /// Whether a slot lies in the ring that `by` produces, with this generation: for the node, once `by` is dead.
    pub fn holds(&self, by: Side, slot: Slot, generation: u32) -> bool {
        let ring = if by == Side::Caller { &self.calls } else { &self.answers };
        ring.holds(|descriptor| descriptor.slot == slot && descriptor.generation == generation)
    }

    /// One end of it. Each end is made once in the life of a channel: its indices begin at 0. `peer` and `desk` are those of
    /// the other end, as the node told.
    pub fn end(&self, side: Side, member: Arc<Member>, peer: Party, desk: Knocker) -> End {
        let (out, back) = match side {
            Side::Caller => (&self.calls, &self.answers),
            Side::Callee => (&self.answers, &self.calls),
        };
        End {
            side,
            producer: Producer::new(out.clone(), 0),
            consumer: Consumer::new(back.clone(), 0),
            counters: Counters::new(self.counters[side as usize].clone()),
            channel: self.clone(),
            member,
            peer,
            desk,
            strict: None,
            line: None,
            pushed: false,
            popped: false,
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }
}

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
    /// The same end over a wire: the kernel carries its descriptors, which [`End::deliver`] takes, and its wake-ups. `number`
    /// is the channel's in the domain.
    pub fn over(self, wire: Wire, number: u32) -> Self {
        let desk = self.desk.over(wire.clone(), number);
        Self { line: Some(Line::new(wire, number)), desk, ..self }
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

    /// Over a wire, before it is read: what is read now is all that a peer had to say that is dead by now. Whether it is.
    pub fn look(&mut self) -> bool {
        let state = self.channel.state();
        self.line.as_mut().into_iter().for_each(|line| line.seen = state);
        state > State::Withdrawn
    }

    /// Over a wire: a record of this channel that it brought.
    pub fn deliver(&mut self, record: &Record) {
        let capacity = self.channel.capacity() as usize;
        let Some(line) = &mut self.line else { return };
        let overdone = line.came.len() >= capacity || record.from != u32::from(self.peer.get());
        if record.is_bell() {
            return;
        }
        match overdone {
            true => self.break_off(),
            false => line.came.push_back(record.descriptor),
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

/// A message that was not sent.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct NotSent {
    /// Why.
    pub why: SendFault,
    /// The message, unless its slot was lost.
    pub message: Option<Outgoing>,
}

/// Why a message was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendFault {
    /// No credit; see [`End::starve`].
    #[error("the ring is full")]
    Full,
    /// The channel is of no use any more.
    #[error("the channel is closed: {0:?}")]
    Closed(State),
    /// The slot was not this party's any more.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// Why nothing was received. All but `Closed` are the peer's fault, and close the channel as broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveFault {
    /// The channel is closed and empty.
    #[error("the channel is closed: {0:?}")]
    Closed(State),
    /// The ring's indices are impossible.
    #[error(transparent)]
    Poisoned(#[from] Poisoned),
    /// The descriptor is impossible, forged or stolen.
    #[error(transparent)]
    Refused(#[from] NotAccepted),
    /// The message is no message.
    #[error(transparent)]
    Malformed(#[from] BadEnvelope),
}
