//! End of a channel: it sends into one ring, receives from the other, and wakes its peer once per
//! batch.

mod sockmap_end;
mod strict_end;

use std::sync::Arc;

use super::{
    Channel, ChannelReceiveError, ChannelSendError, ChannelSide, ChannelState, UnsentMessage,
};
use crate::counters::SideCounters;
use crate::descriptor::Descriptor;
use crate::endpoint::{AcceptOfferError, PoolEndpoint};
use crate::lease_word::EndpointId;
use crate::message::{OutgoingMessage, ReceivedMessage};
use crate::ring::{PushError, RingConsumer, RingPoisoned, RingProducer};
use crate::sockmap::SockmapEnd;
use crate::sync::{Ordering, fence};
use crate::wakeup_cell::WakeupSignal;
use strict_end::StrictState;

/// End of a channel, used by one endpoint.
#[derive(Debug)]
pub struct ChannelEnd {
    side: ChannelSide,
    channel: Channel,
    producer: RingProducer,
    consumer: RingConsumer,
    endpoint: Arc<PoolEndpoint>,
    peer_id: EndpointId,
    peer_signal: WakeupSignal,
    counters: SideCounters,
    /// Present in a strict domain.
    strict: Option<StrictState>,
    /// Present when the kernel carries the descriptors.
    sockmap: Option<SockmapEnd>,
    pushed: bool,
    popped: bool,
}

impl ChannelEnd {
    pub(super) fn new(
        channel: &Channel,
        side: ChannelSide,
        member: Arc<PoolEndpoint>,
        peer: EndpointId,
        cell: WakeupSignal,
    ) -> Self {
        let (out, back) = match side {
            ChannelSide::Caller => (&channel.calls, &channel.answers),
            ChannelSide::Callee => (&channel.answers, &channel.calls),
        };
        Self {
            side,
            producer: RingProducer::new(out.clone(), 0),
            consumer: RingConsumer::new(back.clone(), 0),
            counters: SideCounters::new(channel.counters[side as usize].clone()),
            channel: channel.clone(),
            endpoint: member,
            peer_id: peer,
            peer_signal: cell,
            strict: None,
            sockmap: None,
            pushed: false,
            popped: false,
        }
    }

    /// Sends a message. The next [`ChannelEnd::flush_batch`] wakes the peer.
    pub fn send_message(&mut self, message: OutgoingMessage) -> Result<(), UnsentMessage> {
        self.send_if_state(ChannelState::Open, message)
    }

    /// Sends a part or cancel of an open call: allowed while the channel is withdrawn.
    pub fn send_continuation(&mut self, message: OutgoingMessage) -> Result<(), UnsentMessage> {
        self.send_if_state(ChannelState::Withdrawn, message)
    }

    fn send_if_state(
        &mut self,
        last: ChannelState,
        message: OutgoingMessage,
    ) -> Result<(), UnsentMessage> {
        if let Err(why) = self.check_sendable(last) {
            return Err(UnsentMessage {
                error: why,
                message: Some(message),
            });
        }
        if self.strict.is_some() {
            return self.send_strict(message);
        }
        let OutgoingMessage {
            lease,
            offset,
            length,
        } = message;
        // Offer before push: a descriptor in the ring always names a slot that its receiver may
        // accept (`contract/memory.md`, Lease).
        let offer = lease.offer_to(self.peer_id).map_err(|lost| UnsentMessage {
            error: lost.into(),
            message: None,
        })?;
        let descriptor = offer.descriptor(offset, length);
        match self.producer.push_descriptor(descriptor) {
            Ok(()) => {
                // Only queued: the records of a batch leave with one system call, in `flush_batch`.
                self.sockmap
                    .as_mut()
                    .into_iter()
                    .for_each(|line| line.queue_descriptor(descriptor));
                // After the push: until then a failure returns the slot, afterwards only the
                // receiver has it.
                offer.confirm_pushed();
                self.counters.record_sent(length);
                self.pushed = true;
                Ok(())
            }
            Err(fault) => {
                let why = self.push_fault(fault);
                Err(UnsentMessage {
                    error: why,
                    message: offer.take_back().ok().map(|lease| OutgoingMessage {
                        lease,
                        offset,
                        length,
                    }),
                })
            }
        }
    }

    fn check_sendable(&self, last: ChannelState) -> Result<(), ChannelSendError> {
        // A callee still owes the answers to the open calls of a withdrawn channel.
        let (state, last) = (
            self.channel.state(),
            if self.side == ChannelSide::Callee {
                ChannelState::Withdrawn
            } else {
                last
            },
        );
        if state <= last {
            Ok(())
        } else {
            Err(ChannelSendError::Closed(state))
        }
    }

    fn push_fault(&self, fault: PushError) -> ChannelSendError {
        if let PushError::Poisoned(_) = fault {
            // With an impossible head no credit can be computed any more, so the channel is
            // unusable.
            self.channel.close_with(ChannelState::Broken);
            return ChannelSendError::Closed(ChannelState::Broken);
        }
        ChannelSendError::Full
    }

    /// Returns the next message, if any. Messages sent before a close still arrive, unless the
    /// channel is broken.
    pub fn receive_message(&mut self) -> Result<Option<ReceivedMessage>, ChannelReceiveError> {
        // Before the ring is read: the node closes a channel after the peer's death, so a ring that
        // is empty then stays empty.
        let state = self.channel.state();
        if state == ChannelState::Broken {
            return Err(ChannelReceiveError::Closed(state));
        }
        // A socket delivers completely only what arrived before the last observed state.
        let complete = self
            .sockmap
            .as_ref()
            .map_or(state, |line| line.state_before_read);
        match self.take_message() {
            Ok(None) if complete > ChannelState::Withdrawn => {
                Err(ChannelReceiveError::Closed(state))
            }
            Ok(message) => Ok(message),
            Err(ChannelReceiveError::Closed(state)) => Err(ChannelReceiveError::Closed(state)),
            // The node may have reclaimed a dead peer's last offer before it was read: not a
            // protocol violation.
            Err(ChannelReceiveError::Refused(AcceptOfferError::NotOffered))
                if state > ChannelState::Withdrawn =>
            {
                Err(ChannelReceiveError::Closed(state))
            }
            Err(fault) => {
                self.channel.close_with(ChannelState::Broken);
                self.pushed = true; // wakes the peer, so that it sees the broken channel
                Err(fault)
            }
        }
    }

    /// Closes the channel because the peer violated the protocol, and wakes the peer.
    pub fn break_channel(&mut self) {
        self.channel.close_with(ChannelState::Broken);
        self.wake_peer();
    }

    /// Wakes the peer.
    fn wake_peer(&mut self) {
        match self.sockmap.as_mut().filter(|line| !line.is_empty()) {
            // A wakeup is enough without queued records: the ring has the messages, or only entries
            // became free.
            None => drop(self.peer_signal.wake()),
            Some(line) => {
                if line.send_queued().is_err() {
                    self.channel.close_with(ChannelState::Broken); // the socket failed
                }
            }
        }
    }

    fn pop_descriptor(&mut self) -> Result<Option<Descriptor>, ChannelReceiveError> {
        let Some(line) = &mut self.sockmap else {
            return Ok(self.consumer.pop_descriptor()?);
        };
        let Some(descriptor) = line.received.pop_front() else {
            return Ok(None);
        };
        // A record without a ring entry was sent without a credit.
        self.consumer
            .pop_descriptor()?
            .map(|_| Some(descriptor))
            .ok_or(ChannelReceiveError::Poisoned(RingPoisoned))
    }

    fn take_message(&mut self) -> Result<Option<ReceivedMessage>, ChannelReceiveError> {
        let Some(descriptor) = self.pop_descriptor()? else {
            return Ok(None);
        };
        if let Some(strict) = &self.strict {
            let copy = strict.peer_pool.copy_message(&descriptor);
            return self.finish_copy(copy);
        }
        let lease = self.endpoint.accept_offer(&descriptor, self.peer_id);
        self.consumer.commit_head(); // only after the accept: see `ring`
        self.popped = true;
        Ok(Some(ReceivedMessage::from_slot(lease?, &descriptor)?))
    }

    /// Returns true if [`ChannelEnd::receive_message`] will return a message or error. Check it
    /// before sleeping.
    pub fn has_incoming(&mut self) -> bool {
        let there = match &self.sockmap {
            None => !self.consumer.is_empty(),
            Some(line) => !line.received.is_empty(),
        };
        // A closed channel counts, too: the caller must learn of it instead of sleeping.
        there || self.channel.state() > ChannelState::Withdrawn
    }

    /// Ends a batch of sends and receives: wakes the peer if needed. In a closed channel, reclaims
    /// messages that the peer will not receive.
    pub fn flush_batch(&mut self) {
        if self.pushed || self.popped {
            // Full fence: pairs with the fence after `announce_sleep`; the peer sees the push, or
            // this end sees the sleep.
            fence(Ordering::SeqCst);
        }
        // After the fence: the producer sets its request, fences and then reads `head` again.
        let fed = self.popped && self.consumer.take_wakeup_request();
        if self.pushed || fed {
            self.wake_peer();
        }
        // Read after the fence, which pairs with the one in `close_with`. Either this end takes an
        // offer to a dead peer back, or the node's sweep sees it.
        if self.channel.state() > ChannelState::Withdrawn || self.strict.is_some() {
            self.reclaim_unconsumed();
        }
        (self.pushed, self.popped) = (false, false);
    }

    /// Frees messages that were sent and not received; returns how many. Runs automatically only
    /// after the peer's death. In a strict domain: frees messages that the peer will not read.
    pub fn reclaim_unconsumed(&mut self) -> u32 {
        if self.strict.is_some() {
            return self.reclaim_strict();
        }
        let (member, peer) = (&self.endpoint, self.peer_id);
        self.producer
            .unconsumed()
            .filter(|descriptor| member.recall_offer(descriptor, peer))
            .count() as u32
    }

    /// Returns the messages that can be sent now. A caller has at most one ring capacity of
    /// unanswered calls.
    pub fn credits(&mut self) -> u32 {
        let room = self.producer.free_entries().unwrap_or(0);
        match self.side {
            // Bounded by open calls, too: single answers then never overflow the ring of answers.
            ChannelSide::Caller => room.min(
                self.channel
                    .capacity()
                    .saturating_sub(self.counters.in_flight() as u32),
            ),
            ChannelSide::Callee => room,
        }
    }

    /// Returns the free entries of the own ring, whatever calls are open. Parts are limited by this
    /// alone.
    pub fn free_entries(&mut self) -> u32 {
        self.producer.free_entries().unwrap_or(0)
    }

    /// Requests a wakeup when the peer frees an entry; true when the ring has room already. The
    /// peer answers once and wakes only sleepers: call this after
    /// [`crate::WakeupCell::announce_sleep`], before each sleep. Then check [`ChannelEnd::credits`]
    /// and [`ChannelEnd::has_incoming`].
    pub fn request_wakeup(&mut self) -> bool {
        // A poisoned ring counts as room: the next send reports it, a sleep would hide it.
        self.producer.request_wakeup().unwrap_or(true)
    }

    /// Returns the counters of this side.
    pub fn counters(&mut self) -> &mut SideCounters {
        &mut self.counters
    }

    /// Returns the id of the peer.
    pub fn peer_id(&self) -> EndpointId {
        self.peer_id
    }

    /// Returns the wakeup signal of the peer.
    pub fn peer_signal(&self) -> &WakeupSignal {
        &self.peer_signal
    }

    /// Returns the channel.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }
}
