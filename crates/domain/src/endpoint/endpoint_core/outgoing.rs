//! Calls and events that this endpoint sends.

use std::task::{Poll, Waker};

use nearpath_shm::envelope::flag;
use nearpath_shm::{Envelope, MessageKind};

use super::super::link::PeerLink;
use super::super::payload::{BodyDraft, BodySource};
use super::super::send_queue::{BodyExtent, QueuedMessage, begin_message};
use super::super::types::{CallError, CallRequest, PublishReport, UnsentReason};
use super::{CallOutcome, EndpointCore};
use crate::clock::MonotonicNanos;
use crate::peer_table::{CallDestination, CallNumber, NoPeer};

impl EndpointCore {
    /// Claims a slot for a draft; none when no slot of that size is free.
    pub(in crate::endpoint) fn claim_draft(&mut self, bytes: usize) -> Option<BodyDraft> {
        let claimed = BodyDraft::claim_slot(&self.endpoint, &self.socket, bytes);
        claimed.or_else(|| {
            // Consumed slots of a strict pool return only when looked for; a second attempt is
            // worth it then.
            if self.release_consumed() > 0 {
                BodyDraft::claim_slot(&self.endpoint, &self.socket, bytes)
            } else {
                None
            }
        })
    }

    /// Sends a call, or its beginning. The load replaces the request's body.
    pub(in crate::endpoint) fn send_call(
        &mut self,
        to: CallDestination<'_>,
        request: &CallRequest<'_>,
        mut load: BodySource<'_>,
        whole: BodyExtent,
        now: MonotonicNanos,
    ) -> Result<CallNumber, UnsentReason> {
        let channel = self.choose_channel(to)?;
        // Opened before the send: the envelope carries the call number, which only the table
        // assigns.
        let call = self.peer_table.open_call(channel, now, request.deadline);
        let envelope = Envelope {
            flags: flag::PARTS,
            ..request_envelope(MessageKind::Call, call, request)
        };
        let sent = self.send_first_message(channel, envelope, request, &mut load, whole);
        match sent {
            Ok(()) => Ok(call),
            Err(why) => {
                // No peer has seen the call: no response is owed, and no credit was spent.
                self.peer_table.undo_open(call);
                Err(why)
            }
        }
    }

    /// Streams the response of a call that was just sent.
    pub(in crate::endpoint) fn stream_response(&mut self, call: CallNumber) {
        let link = self
            .peer_table
            .call_channel(call)
            .and_then(|channel| self.links.get_mut(&channel));
        link.into_iter().for_each(|link| link.stream_response(call));
    }

    /// Sends an event.
    pub(in crate::endpoint) fn send_event(
        &mut self,
        to: CallDestination<'_>,
        request: &CallRequest<'_>,
        mut load: BodySource<'_>,
        now: MonotonicNanos,
    ) -> Result<(), UnsentReason> {
        let channel = self.choose_channel(to)?;
        // Events have call numbers, too, so that their parts differ from those of calls.
        let call = self.peer_table.open_call(channel, now, 0);
        self.peer_table.undo_open(call);
        self.send_first_message(
            channel,
            request_envelope(MessageKind::Event, call, request),
            request,
            &mut load,
            BodyExtent::Complete,
        )
    }

    /// Sends an event to one instance of each subscribed function, and once to the gateway for those
    /// on other nodes.
    pub(in crate::endpoint) fn publish_event(
        &mut self,
        topic: &str,
        request: &CallRequest<'_>,
        now: MonotonicNanos,
    ) -> PublishReport {
        let mut fields = vec![(":name", topic.as_bytes())];
        // Only one topic per event: a name from the request would be ambiguous.
        fields.extend(request.fields.iter().filter(|(name, _)| *name != ":name"));
        let request = CallRequest {
            fields: &fields,
            ..request.clone()
        };
        let mut published = PublishReport::default();
        for subscriber in self.peer_table.subscribers(topic) {
            match self.send_event(
                CallDestination::Subscriber(&subscriber),
                &request,
                BodySource::Borrowed(&request.body),
                now,
            ) {
                Ok(()) => published.sent += 1,
                // Events are lost rather than queued: a slow subscriber must not hold up the
                // others.
                Err(_) => published.missed += 1,
            }
        }
        published
    }

    /// Polls for credit to call a function.
    #[cfg(feature = "tokio")]
    pub(in crate::endpoint) fn poll_credit(
        &mut self,
        function: &nearpath_types::FunctionId,
        waker: &Waker,
    ) -> bool {
        let Self {
            peer_table: book,
            links,
            ..
        } = self;
        // Request now: the driver may sleep already
        let mut channels = book.function_channels(function).iter();
        let has_credit = channels.any(|channel| {
            links
                .get_mut(channel)
                .is_some_and(PeerLink::has_credit_or_requests)
        });
        let there = has_credit || self.can_call(function);
        if !there {
            self.credit_waiters.push((function.clone(), waker.clone()));
        }
        there
    }

    /// Returns true if a call to the function would not fail for lack of credit.
    pub(in crate::endpoint) fn can_call(&mut self, function: &nearpath_types::FunctionId) -> bool {
        let Self {
            peer_table: book,
            links,
            ..
        } = self;
        let channels = book.function_channels(function);
        // Without channels there is nothing to wait for: the call itself reports the missing peer.
        channels.is_empty()
            || channels
                .iter()
                .any(|channel| links.get_mut(channel).is_some_and(PeerLink::has_credit))
    }

    /// Wakes every task waiting for credit; losers wait again.
    #[cfg(feature = "tokio")]
    pub(super) fn wake_credit_waiters(&mut self) {
        for (function, waker) in std::mem::take(&mut self.credit_waiters) {
            match self.can_call(&function) {
                true => waker.wake(),
                false => self.credit_waiters.push((function, waker)),
            }
        }
    }

    pub(super) fn choose_channel(&mut self, to: CallDestination<'_>) -> Result<u32, UnsentReason> {
        let links = &mut self.links;
        let credit = |channel| links.get_mut(&channel).is_some_and(PeerLink::has_credit);
        self.peer_table
            .choose_channel(to, credit)
            .map_err(|reason| match reason {
                NoPeer::Unknown => UnsentReason::NoPeer,
                NoPeer::Busy => UnsentReason::NoCredit,
                NoPeer::NoChannel(error) => UnsentReason::NoChannel(error),
            })
    }

    pub(super) fn send_first_message(
        &mut self,
        channel: u32,
        envelope: Envelope,
        request: &CallRequest<'_>,
        load: &mut BodySource<'_>,
        whole: BodyExtent,
    ) -> Result<(), UnsentReason> {
        let link = self.links.get_mut(&channel).ok_or(UnsentReason::NoPeer)?;
        let mut flow = begin_message(
            &mut link.end,
            &self.endpoint,
            envelope,
            request.fields,
            load,
            whole,
        );
        // A failed attempt kept the body, so it can be repeated with the returned slots.
        if matches!(flow, Err(UnsentReason::NoSlot)) && self.release_consumed() > 0 {
            let link = self.links.get_mut(&channel).ok_or(UnsentReason::NoPeer)?;
            flow = begin_message(
                &mut link.end,
                &self.endpoint,
                envelope,
                request.fields,
                load,
                whole,
            );
        }
        let (flow, link) = (
            flow?,
            self.links.get_mut(&channel).ok_or(UnsentReason::NoPeer)?,
        );
        if envelope.kind == MessageKind::Call {
            // After the send: a call that no peer saw must not count as open.
            link.end.counters().record_opened();
        }
        if let Some(flow) = flow {
            link.add_flow(envelope.call, flow);
            link.send_unsent(&self.endpoint);
        }
        self.needs_flush = true;
        Ok(())
    }

    /// Strict domains: releases slots that peers consumed since the last run; returns how many.
    pub(super) fn release_consumed(&mut self) -> u32 {
        self.links
            .values_mut()
            .map(|link| link.end.release_consumed())
            .sum()
    }

    /// Returns the outcome of a call, once.
    pub(in crate::endpoint) fn poll_outcome(
        &mut self,
        call: CallNumber,
        waker: Option<&Waker>,
    ) -> Poll<CallOutcome> {
        self.peer_table
            .poll_outcome(call, waker)
            .map(|outcome| outcome.unwrap_or(Err(CallError::PeerDied)))
    }

    /// Abandons a call: its outcome is not wanted any more.
    pub(in crate::endpoint) fn abandon_call(&mut self, call: CallNumber) {
        if let Some(channel) = self.peer_table.abandon_call(call) {
            self.cancel_call(channel, call);
        }
    }

    pub(in crate::endpoint) fn cancel_call(&mut self, channel: u32, call: CallNumber) {
        let Some(link) = self.links.get_mut(&channel) else {
            return;
        };
        // Unsent parts are pointless once the call is cancelled.
        link.drop_unsent(call);
        link.send_queue
            .push_back(QueuedMessage::cancel_message(call));
        link.send_unsent(&self.endpoint);
        self.needs_flush = true;
    }
}

pub(super) fn request_envelope(
    kind: MessageKind,
    call: u64,
    request: &CallRequest<'_>,
) -> Envelope {
    let CallRequest {
        deadline,
        trace,
        span,
        ..
    } = *request;
    Envelope {
        deadline,
        trace,
        span,
        ..Envelope::new(kind, call)
    }
}
