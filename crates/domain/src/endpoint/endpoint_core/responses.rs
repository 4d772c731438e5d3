//! Responses that this endpoint sends.

use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::task::Waker;
use std::time::Duration;

use nearpath_shm::envelope::flag;
use nearpath_shm::{Envelope, MessageKind, PoolEndpoint};

use super::super::link::{OwedResponse, PeerLink};
use super::super::payload::{BodySource, CallBody};
use super::super::send_queue::{BodyExtent, QueuedMessage, begin_message};
use super::super::types::{CallError, CallResponse, UnsentReason};
use super::EndpointCore;
use crate::clock::MonotonicNanos;

impl EndpointCore {
    /// Responds to a received call. No effect when the caller is gone.
    pub(in crate::endpoint) fn send_response(
        &mut self,
        channel: u32,
        call: u64,
        answer: CallResponse,
        now: MonotonicNanos,
    ) {
        if let Some(link) = self.links.get_mut(&channel) {
            if link
                .owed_responses
                .get(&call)
                .is_some_and(|taken| taken.begun_status.is_some())
            {
                abort_response(link, call); // it had begun and was not finished
                link.send_unsent(&self.endpoint);
            } else {
                respond_on(link, &self.endpoint, call, answer, now);
            }
            self.needs_flush = true;
        }
        self.end_finished_links();
    }

    #[cfg(feature = "tokio")]
    /// Polls for cancellation: true if the caller cancelled the call or is gone.
    pub(in crate::endpoint) fn poll_given_up(
        &mut self,
        channel: u32,
        call: u64,
        waker: &Waker,
    ) -> bool {
        let taken = self
            .links
            .get_mut(&channel)
            .and_then(|link| link.owed_responses.get_mut(&call));
        // No entry: the call was answered, or its channel ended with the caller.
        let Some(taken) = taken.filter(|taken| !taken.cancelled) else {
            return true;
        };
        taken.waker = Some(waker.clone());
        false
    }

    /// Begins a response whose body is written later; false when no caller wants it.
    pub(in crate::endpoint) fn begin_response(
        &mut self,
        channel: u32,
        call: u64,
        answer: CallResponse,
        total: Option<u64>,
    ) -> bool {
        let Some(link) = self.links.get_mut(&channel) else {
            return false;
        };
        let Some(taken) = link
            .owed_responses
            .get_mut(&call)
            .filter(|taken| !taken.cancelled && taken.begun_status.is_none())
        else {
            return false;
        };
        taken.begun_status = Some(answer.status);
        send_or_queue(link, &self.endpoint, call, answer, BodyExtent::Open(total));
        self.needs_flush = true;
        true
    }
}

/// Records an owed response; false when it is owed already.
pub(super) fn record_owed(link: &mut PeerLink, call: u64, now: MonotonicNanos) -> bool {
    link.end.counters().record_opened();
    link.owed_responses
        .insert(
            call,
            OwedResponse {
                received_at: now,
                cancelled: false,
                begun_status: None,
                waker: None,
            },
        )
        .is_none()
}

pub(super) fn respond_on(
    link: &mut PeerLink,
    member: &Arc<PoolEndpoint>,
    call: u64,
    mut answer: CallResponse,
    now: MonotonicNanos,
) {
    let Some(taken) = link.owed_responses.remove(&call) else {
        return;
    };
    // An answered call needs no more of its request: a reader that is left would wait for ever.
    link.break_body(call, CallError::Aborted);
    if taken.cancelled {
        answer = CallResponse {
            status: 499,
            is_platform: true,
            ..CallResponse::default()
        };
    }
    let took = Duration::from_nanos(now.saturating_sub(taken.received_at));
    link.end
        .counters()
        .record_closed(took, answer.status >= 500 || taken.cancelled);
    send_or_queue(link, member, call, answer, BodyExtent::Complete);
}

/// Sends a response if no message is queued before it; else queues it.
pub(super) fn send_or_queue(
    link: &mut PeerLink,
    member: &Arc<PoolEndpoint>,
    call: u64,
    answer: CallResponse,
    whole: BodyExtent,
) {
    let flags = if answer.is_platform {
        flag::PLATFORM
    } else {
        0
    };
    let CallResponse {
        status,
        reason,
        fields,
        mut body,
        ..
    } = answer;
    let envelope = Envelope {
        flags,
        status,
        reason,
        ..Envelope::new(MessageKind::Answer, call)
    };
    // Only without a queue: a response must not overtake those that wait for room.
    if link.send_queue.is_empty() {
        let borrowed: Vec<(&str, &[u8])> = fields
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        match begin_message(
            &mut link.end,
            member,
            envelope,
            &borrowed,
            &mut BodySource::Owned(&mut body),
            whole,
        ) {
            Ok(None) => return,
            Ok(Some(flow)) => link.add_flow(call, flow),
            // A bad head is queued, too: `send_first_messages` turns it into an error, since the
            // caller waits.
            Err(UnsentReason::NoCredit | UnsentReason::NoSlot | UnsentReason::BadHead) => link
                .send_queue
                .push_back(QueuedMessage::new(envelope, fields, body, whole)),
            Err(UnsentReason::BodyLost) => link
                .send_queue
                .push_back(QueuedMessage::lost_body_response(envelope)),
            Err(_) => return,
        }
    } else {
        link.send_queue
            .push_back(QueuedMessage::new(envelope, fields, body, whole));
    }
    link.send_unsent(member);
}

/// Aborts a begun response: with a cancel message, or as an error if no part was sent.
pub(super) fn abort_response(link: &mut PeerLink, call: u64) {
    // A caller that saw a part needs a cancel; one that saw nothing still needs an answer.
    let seen = link.drop_unsent(call);
    let gave_up = Envelope {
        status: 499,
        flags: flag::PLATFORM,
        ..Envelope::new(MessageKind::Answer, call)
    };
    link.send_queue.push_back(match seen {
        true => QueuedMessage::cancel_message(call),
        false => QueuedMessage::new(
            gave_up,
            Vec::new(),
            CallBody::default(),
            BodyExtent::Complete,
        ),
    });
    link.settle_response(call, true);
}
