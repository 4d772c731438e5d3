//! Sending on a channel, as room allows: release reports, first messages, body parts.

use std::sync::Arc;

use nearpath_shm::{ChannelEnd, Envelope, MessageDraft, MessageKind, PoolEndpoint, envelope};

use super::PeerLink;
use crate::endpoint::body_flow::BodyFlow;
use crate::endpoint::part_sending::{SendProgress, claim_for_body, has_ring_room, send_draft};
use crate::endpoint::types::UnsentReason;
use crate::outbound_body::part_window;

/// Reports all messages of a body as released, present and future: an assembling receiver needs no
/// window.
pub(super) const ALL_RELEASED: u64 = u64::MAX;

impl PeerLink {
    /// Adds a body whose first message was sent.
    pub(in crate::endpoint) fn add_flow(&mut self, call: u64, flow: BodyFlow) {
        self.flows.insert(call, flow);
        self.sendable.push_back(call);
    }

    /// Returns the flow of a body for its writer; call [`PeerLink::mark_sendable`] afterwards.
    pub(in crate::endpoint) fn flow_mut(&mut self, call: u64) -> Option<&mut BodyFlow> {
        self.flows.get_mut(&call)
    }

    /// Marks a flow as sendable again.
    pub(in crate::endpoint) fn mark_sendable(&mut self, call: u64) {
        // Once per call: a double entry would give its body two turns per round.
        if !self.sendable.contains(&call) {
            self.sendable.push_back(call);
        }
    }

    /// Returns true if anything is unsent.
    pub(in crate::endpoint) fn has_unsent(&self) -> bool {
        !self.send_queue.is_empty() || !self.sendable.is_empty() || !self.unsent_releases.is_empty()
    }

    /// Sends all that can be sent. Before sleeping with the rest, [`PeerLink::has_work`] requests a
    /// wakeup.
    pub(in crate::endpoint) fn send_unsent(&mut self, member: &Arc<PoolEndpoint>) {
        loop {
            self.needs_slot = false;
            self.send_releases(member);
            self.send_first_messages(member);
            self.send_flows(member);
            if !self.has_unsent() || self.needs_slot || !self.can_send(member) {
                return;
            }
        }
    }

    /// Sends release reports first: the peer may be waiting for them with all its slots in use.
    fn send_releases(&mut self, member: &Arc<PoolEndpoint>) {
        while let Some((&call, &let_go)) = self.unsent_releases.first_key_value() {
            match send_release(&mut self.end, member, call, let_go) {
                Err(UnsentReason::NoCredit) => return,
                Err(UnsentReason::NoSlot) => return self.needs_slot = true,
                Ok(()) | Err(_) => drop(self.unsent_releases.remove(&call)),
            }
        }
    }

    /// Sends queued first messages. A response that cannot be written becomes an error, because its
    /// caller waits.
    fn send_first_messages(&mut self, member: &Arc<PoolEndpoint>) {
        while let Some(queued) = self.send_queue.front_mut() {
            let call = queued.envelope.call;
            match queued.try_send(&mut self.end, member) {
                Ok(flow) => {
                    self.send_queue.pop_front();
                    match flow {
                        Some(flow) => self.add_flow(call, flow),
                        None => self.finish_response(call),
                    }
                }
                // Only an answer has a substitute, because its caller waits.
                Err(SendProgress::Impossible) => match queued.bad_head_response() {
                    Some(excuse) => *queued = excuse,
                    None => drop(self.send_queue.pop_front()),
                },
                Err(why) => return self.needs_slot |= why == SendProgress::NeedsSlot,
            }
        }
    }

    fn send_flows(&mut self, member: &Arc<PoolEndpoint>) {
        // Shared by all bodies of the channel, so that many of them do not fill the peer's memory.
        let window = part_window(self.flows.len());
        // One turn per body: those that go on waiting are appended and would be visited for ever.
        for _ in 0..self.sendable.len() {
            let Some(call) = self.sendable.pop_front() else {
                return;
            };
            let Some(flow) = self.flows.get_mut(&call) else {
                continue;
            };
            match flow.send_parts(&mut self.end, member, window) {
                // Not listed again: the writer marks it as sendable with its next chunk.
                SendProgress::NeedsWriter => {}
                SendProgress::NeedsRoom => self.sendable.push_back(call),
                SendProgress::NeedsSlot => {
                    self.sendable.push_back(call);
                    self.needs_slot = true;
                }
                SendProgress::Sent => {
                    self.flows.remove(&call);
                    self.finish_response(call);
                }
                SendProgress::Impossible => drop(self.flows.remove(&call)),
            }
        }
    }

    /// Records a release report of a strict peer: more of the body may be sent.
    pub(super) fn record_release(&mut self, call: u64, let_go: u64) {
        if let Some(flow) = self.flows.get_mut(&call) {
            flow.record_release(let_go);
            self.mark_sendable(call);
        }
    }

    /// Queues a release report for a strict peer. Of several reports for one body the highest
    /// counts.
    pub(in crate::endpoint) fn report_release(&mut self, call: u64, let_go: u64) {
        let highest = self.unsent_releases.entry(call).or_default();
        *highest = let_go.max(*highest);
    }

    /// Queues a report for a body without a reader.
    pub(in crate::endpoint) fn report_all_released(&mut self, call: u64) {
        self.report_release(call, ALL_RELEASED);
    }

    pub(super) fn can_send(&mut self, member: &Arc<PoolEndpoint>) -> bool {
        self.end.release_consumed(); // messages that a strict peer consumed no longer count
        if (!self.send_queue.is_empty() || !self.unsent_releases.is_empty())
            && has_ring_room(&mut self.end, false)
        {
            return true;
        }
        let Self {
            sendable: busy,
            flows,
            end,
            ..
        } = self;
        let window = part_window(flows.len());
        let mut due = |call: &u64| {
            flows
                .get_mut(call)
                .is_some_and(|flow| flow.can_send(member, window))
        };
        has_ring_room(end, true) && busy.iter().any(&mut due)
    }
}

/// Sends the number of released messages of a body.
fn send_release(
    end: &mut ChannelEnd,
    member: &Arc<PoolEndpoint>,
    call: u64,
    let_go: u64,
) -> Result<(), UnsentReason> {
    let draft = MessageDraft::new(claim_for_body(member, envelope::body_offset(0), 0)?);
    let envelope = Envelope {
        total: let_go,
        ..Envelope::new(MessageKind::Taken, call)
    };
    send_draft(end, draft, envelope, &[], false)
}
