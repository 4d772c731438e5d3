//! Endpoint side of one channel: its end, unsent messages, and partly received bodies.

mod incoming;
mod outgoing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use nearpath_shm::{ChannelEnd, ChannelSide, MessageKind, PoolEndpoint};
use nearpath_types::InstanceId;

use super::body_flow::BodyFlow;
use super::body_reader::PartQueue;
use super::send_queue::QueuedMessage;
use super::types::{CallError, CallerIdentity};
use crate::clock::{self, MonotonicNanos};
use incoming::PartialBody;

pub(super) use incoming::{LinkEvent, ReceivePolicy};

/// A channel that is open or draining.
#[derive(Debug)]
pub(super) struct PeerLink {
    pub(super) end: ChannelEnd,
    pub(super) side: ChannelSide,
    /// The caller; on the callee's side.
    pub(super) caller: Arc<CallerIdentity>,
    pub(super) instance: InstanceId,
    /// First messages that wait, in order.
    pub(super) send_queue: VecDeque<QueuedMessage>,
    /// Bodies in flight by call, and the calls that have something to send, in turn.
    flows: BTreeMap<u64, BodyFlow>,
    sendable: VecDeque<u64>,
    pub(super) needs_slot: bool,
    partial_bodies: HashMap<u64, PartialBody>,
    /// Calls whose responses are streamed, whatever the default.
    streamed_responses: BTreeSet<u64>,
    /// Unsent reports to a strict peer: released messages by call.
    unsent_releases: BTreeMap<u64, u64>,
    /// Body that must be read before more is received on this channel.
    blocked_on: Option<Arc<PartQueue>>,
    /// Received calls without a complete response; on the callee's side.
    pub(super) owed_responses: HashMap<u64, OwedResponse>,
    /// Calls are not allowed.
    pub(super) events_only: bool,
    /// The peer is its instance's watchdog: only its responses can be errors of the platform.
    pub(super) is_watchdog: bool,
    pub(super) closed: bool,
    pub(super) withdrawn: bool,
}

/// A received call that is owed a response.
#[derive(Debug)]
pub(super) struct OwedResponse {
    pub(super) received_at: MonotonicNanos,
    pub(super) cancelled: bool,
    /// Status of the response, once it has begun.
    pub(super) begun_status: Option<u16>,
    pub(super) waker: Option<Waker>,
}

impl PeerLink {
    pub(super) fn new(
        end: ChannelEnd,
        side: ChannelSide,
        caller: Arc<CallerIdentity>,
        instance: InstanceId,
    ) -> Self {
        Self {
            end,
            side,
            caller,
            instance,
            send_queue: VecDeque::new(),
            flows: BTreeMap::new(),
            sendable: VecDeque::new(),
            needs_slot: false,
            partial_bodies: HashMap::new(),
            streamed_responses: BTreeSet::new(),
            unsent_releases: BTreeMap::new(),
            blocked_on: None,
            owed_responses: HashMap::new(),
            events_only: false,
            is_watchdog: false,
            closed: false,
            withdrawn: false,
        }
    }

    /// Closes the channel because the peer violated the protocol.
    pub(super) fn break_channel(&mut self) {
        self.end.break_channel();
        self.closed = true;
    }

    /// Settles a streamed response whose last part was sent.
    fn finish_response(&mut self, call: u64) {
        if self
            .owed_responses
            .get(&call)
            .is_some_and(|taken| taken.begun_status.is_some())
        {
            self.settle_response(call, false);
        }
    }

    /// Settles a response: nothing is owed for this call any more.
    pub(super) fn settle_response(&mut self, call: u64, broken: bool) {
        let Some(mut taken) = self.owed_responses.remove(&call) else {
            return;
        };
        taken.waker.take().into_iter().for_each(Waker::wake);
        self.break_body(call, CallError::Aborted);
        let took = Duration::from_nanos(clock::monotonic_now().saturating_sub(taken.received_at));
        self.end.counters().record_closed(
            took,
            broken || taken.begun_status.is_some_and(|status| status >= 500),
        );
    }

    /// Drops what was not sent of a call. Returns true if the peer has seen a part of it.
    pub(super) fn drop_unsent(&mut self, call: u64) -> bool {
        self.streamed_responses.remove(&call);
        // Runs for every settled call: the usual empty queue costs one comparison.
        if !self.send_queue.is_empty() {
            self.send_queue.retain(|queued| {
                // A queued cancel stays: the peer still has parts of this call.
                queued.envelope.call != call || queued.envelope.kind == MessageKind::Cancel
            });
        }
        self.flows.remove(&call).is_some()
    }

    /// Returns true if there is work; checked after announcing a sleep. Only here the peer is asked
    /// for a wakeup: it answers once, and wakes only sleepers. The room that it made earlier may be
    /// full again by then.
    pub(super) fn has_work(&mut self, member: &Arc<PoolEndpoint>) -> bool {
        // Without a slot, room in the ring is of no use: a timer retries the claim instead.
        let waits = self.has_unsent() && !self.needs_slot;
        if waits {
            self.end.request_wakeup();
        }
        waits && self.can_send(member)
            || self.is_newly_drained()
            || self.end.has_incoming() && !self.is_blocked()
    }

    /// Returns true if a draining link could not end at the last check, and can now: its peer has
    /// read all of this endpoint's pool.
    fn is_newly_drained(&mut self) -> bool {
        self.withdrawn
            && self.side == ChannelSide::Caller
            && self.is_idle()
            && self.end.is_newly_drained()
    }

    /// Returns true if a call can be made here. Otherwise the peer is asked for a wakeup; for use
    /// before sleeping.
    #[cfg(feature = "tokio")]
    pub(super) fn has_credit_or_requests(&mut self) -> bool {
        self.end.request_wakeup();
        self.has_credit()
    }

    /// Returns true if a call can be made here.
    pub(super) fn has_credit(&mut self) -> bool {
        // A queued message comes first: a new call must not take its entry.
        !self.closed && self.send_queue.is_empty() && self.end.credits() > 0
    }

    /// Returns true if nothing is unsent or owed on this side.
    pub(super) fn is_idle(&self) -> bool {
        self.send_queue.is_empty()
            && self.flows.is_empty()
            && self.owed_responses.is_empty()
            && self.partial_bodies.is_empty()
    }
}
