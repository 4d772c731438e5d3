//! Received messages: responses to own calls, and calls of peers.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use nearpath_shm::envelope::flag;
use nearpath_shm::{ChannelSide, Envelope, MessageKind};
use nearpath_types::Reason;

use super::super::body_reader::{BodyReader, PartQueue, ReaderReport};
use super::super::link::{LinkEvent, PeerLink};
use super::super::payload::CallBody;
use super::super::send_queue::QueuedMessage;
use super::super::types::{CallError, CallReply, CallResponse, IncomingCall};
use super::responses::{abort_response, record_owed, respond_on};
use super::{CallOutcome, EndpointCore};
use crate::clock::MonotonicNanos;
use crate::peer_table::CallNumber;

/// Response to a body above `EndpointSettings::max_body_bytes`, or to an invalid head.
const TOO_LARGE_TEXT: &str = "the call's body exceeds the function's limit for assembled bodies \
    (64 MiB by default; a function that reads its body as a stream has no limit), \
    or its head is invalid or too long\n";

impl EndpointCore {
    pub(super) fn handle_response(
        &mut self,
        channel: u32,
        link: &mut PeerLink,
        came: LinkEvent,
        now: MonotonicNanos,
    ) {
        let (call, outcome) = match came {
            LinkEvent::Whole(envelope, head, body) => (
                envelope.call,
                Ok(build_reply(link, &envelope, head, body, None)),
            ),
            LinkEvent::Begun(envelope, head, body, feed) => {
                if !self.peer_table.is_response_owed(envelope.call, channel)
                    || !self.peer_table.is_awaited(envelope.call)
                {
                    return feed.stop_reading(); // it was cancelled, and the callee knows
                }
                let rest = self.body_reader(channel, envelope.call, feed);
                self.peer_table.begin_response(
                    envelope.call,
                    Ok(build_reply(link, &envelope, head, body.into(), Some(rest))),
                );
                return;
            }
            LinkEvent::Ended(call) => return self.settle_call(channel, link, call, None, now),
            LinkEvent::Cancelled(call, _) => (call, Err(CallError::Aborted)),
            LinkEvent::Rejected(envelope) => (
                envelope.call,
                Err(CallError::BadAnswer(self.settings.max_body_bytes)),
            ),
            LinkEvent::Part => return,
        };
        self.settle_call(channel, link, call, Some(outcome), now);
    }

    /// Settles a call. `outcome` is none when its response began earlier.
    pub(super) fn settle_call(
        &mut self,
        channel: u32,
        link: &mut PeerLink,
        call: CallNumber,
        outcome: Option<CallOutcome>,
        now: MonotonicNanos,
    ) {
        if !self.peer_table.is_response_owed(call, channel) {
            return; // a second response, or one to another channel's call
        }
        // The callee has answered: it reads no more of the call's body.
        link.drop_unsent(call);
        // Failed as in `CallCounts`: no reply, or a status of 500 or above.
        let failed = outcome
            .as_ref()
            .is_some_and(|outcome| !matches!(outcome, Ok(reply) if reply.status < 500));
        let begun = outcome.is_none();
        if let Some(settled) = self
            .peer_table
            // A streamed response was given out when it began, so this value is not read.
            .settle_call(call, outcome.unwrap_or(Err(CallError::PeerDied)))
        {
            let took = Duration::from_nanos(now.saturating_sub(settled.started_at));
            link.end
                .counters()
                .record_closed(took, failed || !begun && !settled.wanted);
        }
    }

    pub(super) fn body_reader(&self, channel: u32, call: u64, feed: Arc<PartQueue>) -> BodyReader {
        BodyReader::new(feed, Arc::clone(&self.reader_reports), channel, call)
    }

    /// Processes reports of readers. The sender of an unread response is told; parts of an unread
    /// call are dropped. Strict senders also get the number of released messages.
    pub(super) fn handle_reader_reports(&mut self) {
        if !self.reader_reports.has_any() {
            return;
        }
        let ReaderReport {
            abandoned: left,
            releases,
            // Taken as a whole: readers on other threads go on reporting meanwhile.
        } = self.reader_reports.take_all();
        for (channel, call, let_go) in releases {
            self.update_link(channel, |link| link.report_release(call, let_go));
        }
        for (channel, call) in left {
            let Some(link) = self
                .links
                .get(&channel)
                .filter(|link| link.has_reader(call))
            else {
                continue;
            };
            match link.side {
                // A response without a reader is cancelled; a call without one is still answered.
                ChannelSide::Caller => self.cancel_call(channel, call),
                ChannelSide::Callee if self.endpoint.pool().is_strict() => {
                    self.update_link(channel, |link| link.report_all_released(call))
                }
                ChannelSide::Callee => {}
            }
        }
    }

    fn update_link(&mut self, channel: u32, what: impl FnOnce(&mut PeerLink)) {
        let Some(link) = self.links.get_mut(&channel) else {
            return;
        };
        what(link);
        link.send_unsent(&self.endpoint);
        self.needs_flush = true;
    }

    pub(super) fn handle_call(
        &mut self,
        channel: u32,
        link: &mut PeerLink,
        came: LinkEvent,
        now: MonotonicNanos,
    ) {
        match came {
            LinkEvent::Whole(envelope, head, body) => {
                self.accept_call(channel, link, envelope, head, body, None, now)
            }
            LinkEvent::Begun(envelope, head, body, feed) => {
                let rest = Some(self.body_reader(channel, envelope.call, feed));
                self.accept_call(channel, link, envelope, head, body.into(), rest, now);
            }
            LinkEvent::Cancelled(call, assembling) => {
                self.handle_cancel(channel, link, call, assembling, now)
            }
            LinkEvent::Rejected(envelope) if envelope.kind == MessageKind::Call => {
                // Recorded first: `respond_on` answers only calls that are owed.
                record_owed(link, envelope.call, now);
                let answer = unreadable_call_response();
                respond_on(link, &self.endpoint, envelope.call, answer, now);
            }
            LinkEvent::Rejected(envelope) if self.settings.forwards_events => {
                let (head, body) = Default::default();
                self.accept_call(channel, link, envelope, head, body, None, now);
            }
            LinkEvent::Rejected(_) | LinkEvent::Part | LinkEvent::Ended(_) => {}
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one message, taken apart")]
    pub(super) fn accept_call(
        &mut self,
        channel: u32,
        link: &mut PeerLink,
        envelope: Envelope,
        head: Vec<u8>,
        body: CallBody,
        rest: Option<BodyReader>,
        now: MonotonicNanos,
    ) {
        let event = envelope.kind == MessageKind::Event;
        let Envelope {
            deadline,
            trace,
            span,
            call,
            ..
        } = envelope;
        if !event && !record_owed(link, call, now) {
            return link.break_channel(); // the same call number twice
        }
        // One identity per channel, formatted once: calls only share it.
        let caller = Arc::clone(&link.caller);
        let Some(head) = caller.sign_head(head) else {
            // No effect for an event, which is owed no response.
            return respond_on(link, &self.endpoint, call, unreadable_call_response(), now);
        };
        self.incoming.push_back(IncomingCall {
            caller,
            is_event: event,
            deadline,
            trace,
            span,
            head,
            body,
            reader: rest,
            channel,
            call,
        });
    }

    /// Cancels a received call. Every call is answered, also a cancelled one, because the answer
    /// returns the caller's credit.
    pub(super) fn handle_cancel(
        &mut self,
        channel: u32,
        link: &mut PeerLink,
        call: u64,
        assembling: bool,
        now: MonotonicNanos,
    ) {
        let queued = self
            .incoming
            .iter()
            .position(|i| i.channel == channel && i.call == call && !i.is_event);
        // Not handled yet: the function never sees the call.
        if let Some(at) = queued {
            self.incoming.remove(at);
        }
        if assembling {
            record_owed(link, call, now);
        }
        if assembling || queued.is_some() {
            let answer = CallResponse {
                status: 499,
                is_platform: true,
                ..CallResponse::default()
            };
            respond_on(link, &self.endpoint, call, answer, now);
        } else if link
            .owed_responses
            .get(&call)
            .is_some_and(|taken| taken.begun_status.is_some())
        {
            abort_response(link, call);
        } else if let Some(taken) = link.owed_responses.get_mut(&call) {
            // The handler runs already: its response becomes a 499, which returns the credit.
            taken.cancelled = true;
            taken.waker.take().into_iter().for_each(Waker::wake);
        } else if link.drop_unsent(call) {
            link.send_queue
                // Its response was being sent in parts
                .push_back(QueuedMessage::cancel_message(call));
        }
    }
}

fn unreadable_call_response() -> CallResponse {
    CallResponse::platform_error(Reason::BodyTooLarge, TOO_LARGE_TEXT)
}

pub(super) fn build_reply(
    link: &PeerLink,
    envelope: &Envelope,
    head: Vec<u8>,
    body: CallBody,
    rest: Option<BodyReader>,
) -> CallReply {
    // Every endpoint can set the flag. Tenant code must not forge reasons of the platform: after a
    // forged "did not run" its caller would repeat a call that ran.
    let is_platform = link.is_watchdog && envelope.has_flag(flag::PLATFORM);
    CallReply {
        status: envelope.status,
        reason: if is_platform { envelope.reason } else { 0 },
        is_platform,
        answered_by: link.instance,
        head,
        body,
        reader: rest,
    }
}
