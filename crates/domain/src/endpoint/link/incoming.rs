//! Received messages of a channel: whole messages, assembled bodies, streamed bodies.

use std::sync::Arc;

use bytes::Bytes;
use nearpath_shm::channel::ChannelReceiveError;
use nearpath_shm::envelope::flag;
use nearpath_shm::{ChannelSide, Envelope, MessageKind, ReceivedMessage};

use super::PeerLink;
use crate::body_assembly::BodyAssembly;
use crate::endpoint::body_reader::PartQueue;
use crate::endpoint::payload::CallBody;
use crate::endpoint::types::CallError;

/// Maximum number of messages received from one channel before the others have their turn.
const MAX_BATCH_MESSAGES: usize = 64;

/// A body of which only a part has arrived.
#[derive(Debug)]
pub(super) enum PartialBody {
    /// The parts are assembled.
    Assembly(BodyAssembly<FirstMessage>),
    /// The parts are streamed to a reader.
    Stream(Arc<PartQueue>),
}

/// Policy for bodies that arrive in parts.
#[derive(Debug, Clone, Copy)]
pub(in crate::endpoint) struct ReceivePolicy {
    /// Maximum bytes of an assembled body.
    pub(in crate::endpoint) max_body_bytes: usize,
    /// Maximum number of a channel's events of which only a part has arrived.
    pub(in crate::endpoint) max_partial_events: usize,
    /// Streams bodies of calls and responses.
    pub(in crate::endpoint) stream_bodies: bool,
    /// Reports releases to the peer, which sees no lease in a strict domain.
    pub(in crate::endpoint) reports_releases: bool,
}

/// First message of a body in parts: envelope and head.
pub(in crate::endpoint) type FirstMessage = (Envelope, Vec<u8>);

/// Event of a channel.
#[derive(Debug)]
pub(in crate::endpoint) enum LinkEvent {
    /// A whole message.
    Whole(Envelope, Vec<u8>, CallBody),
    /// The first part of a streamed body.
    Begun(Envelope, Vec<u8>, Bytes, Arc<PartQueue>),
    /// The last part of a streamed body.
    Ended(u64),
    /// The peer cancelled; true if the body was being assembled.
    Cancelled(u64, bool),
    /// The message was rejected: too long, or with an invalid head.
    Rejected(Envelope),
    /// A part that needs no action.
    Part,
}

/// The peer violated the protocol.
#[derive(Debug)]
struct ProtocolBreach;

impl PeerLink {
    /// Receives up to a batch of messages.
    pub(in crate::endpoint) fn receive_batch(
        &mut self,
        taking: ReceivePolicy,
        mut came: impl FnMut(&mut Self, LinkEvent),
    ) {
        for _ in 0..MAX_BATCH_MESSAGES {
            // Checked per message: a single part can fill the reader's queue.
            if self.is_blocked() {
                return;
            }
            match self.end.receive_message() {
                Ok(Some(message)) => match self.classify_message(message, taking) {
                    Ok(sorted) => came(self, sorted),
                    Err(ProtocolBreach) => return self.break_channel(),
                },
                Ok(None) => return,
                Err(ChannelReceiveError::Closed(_)) => return self.closed = true,
                Err(_) => return self.break_channel(),
            }
        }
    }

    fn classify_message(
        &mut self,
        message: ReceivedMessage,
        taking: ReceivePolicy,
    ) -> Result<LinkEvent, ProtocolBreach> {
        let envelope = *message.envelope();
        let fits = match (self.side, envelope.kind) {
            (_, MessageKind::Part | MessageKind::Cancel) => true,
            (_, MessageKind::Taken) => taking.reports_releases,
            (ChannelSide::Caller, kind) => kind == MessageKind::Answer,
            (ChannelSide::Callee, MessageKind::Call) => !self.events_only,
            (ChannelSide::Callee, kind) => kind != MessageKind::Answer,
        };
        if !fits {
            // An answer from a caller, a call against the edge's direction, or an unexpected kind
            return Err(ProtocolBreach);
        }
        Ok(match envelope.kind {
            MessageKind::Cancel => LinkEvent::Cancelled(
                envelope.call,
                self.break_body(envelope.call, CallError::Aborted),
            ),
            MessageKind::Part => self.continue_body(message, envelope, taking),
            MessageKind::Taken => {
                self.record_release(envelope.call, envelope.total);
                LinkEvent::Part
            }
            _ => self.begin_body(message, envelope, taking)?,
        })
    }

    fn begin_body(
        &mut self,
        message: ReceivedMessage,
        envelope: Envelope,
        taking: ReceivePolicy,
    ) -> Result<LinkEvent, ProtocolBreach> {
        let streams = taking.stream_bodies || self.streamed_responses.contains(&envelope.call);
        // An answer ends the reading of a call's body. An event has no answer, so it is assembled.
        let streams = streams && envelope.kind != MessageKind::Event;
        if taking.reports_releases && envelope.has_flag(flag::MORE) && !streams {
            // An assembled body is copied anyway, so its sender needs no window.
            self.report_all_released(envelope.call);
        }
        // Room for the caller's name, which saves moving the head.
        let mut head = Vec::with_capacity(envelope.head as usize + self.caller.added_bytes());
        // Rejected, not a breach: the envelope was valid, and the caller is owed an answer.
        if message.copy_head(&mut head).is_err() {
            return Ok(LinkEvent::Rejected(envelope));
        }
        if !envelope.has_flag(flag::MORE) {
            // Streaming endpoints read bodies and forward none in place.
            let body = if taking.stream_bodies {
                whole_body(message).into()
            } else {
                CallBody::from_message(message)
            };
            return Ok(LinkEvent::Whole(envelope, head, body));
        }
        // More open bodies than calls allowed, or one number twice: only a faulty peer does this.
        if self.partial_bodies.len() >= self.end.channel().capacity() as usize
            || self.partial_bodies.contains_key(&envelope.call)
        {
            return Err(ProtocolBreach);
        }
        // Of an endpoint that takes events only, all incomplete bodies are events.
        if envelope.kind == MessageKind::Event
            && self.partial_bodies.len() >= taking.max_partial_events
        {
            return Ok(LinkEvent::Rejected(envelope));
        }
        let (partial, came) = if streams {
            let feed = PartQueue::new(envelope.total);
            let body = self.part_bytes(message, &feed, taking);
            (
                PartialBody::Stream(Arc::clone(&feed)),
                LinkEvent::Begun(envelope, head, body, feed),
            )
        } else {
            let mut assembly =
                BodyAssembly::new((envelope, head), envelope.total, taking.max_body_bytes);
            if !append_part(&mut assembly, &message) {
                return Ok(LinkEvent::Rejected(envelope));
            }
            (PartialBody::Assembly(assembly), LinkEvent::Part)
        };
        self.partial_bodies.insert(envelope.call, partial);
        Ok(came)
    }

    /// Wraps a part in place: dropping it wakes the sender, or is reported to it.
    fn part_bytes(
        &self,
        message: ReceivedMessage,
        feed: &Arc<PartQueue>,
        taking: ReceivePolicy,
    ) -> Bytes {
        match taking.reports_releases {
            true => feed.hold_message(message),
            false => Bytes::from_owner(nearpath_shm::MessagePayload::with_sender(
                message,
                self.end.peer_signal().clone(),
            )),
        }
    }

    fn continue_body(
        &mut self,
        message: ReceivedMessage,
        envelope: Envelope,
        taking: ReceivePolicy,
    ) -> LinkEvent {
        let last = !envelope.has_flag(flag::MORE);
        match self.partial_bodies.get_mut(&envelope.call) {
            Some(PartialBody::Stream(feed)) => {
                let feed = Arc::clone(feed);
                feed.push_part(self.part_bytes(message, &feed, taking), last);
                if last {
                    self.partial_bodies.remove(&envelope.call);
                    return LinkEvent::Ended(envelope.call);
                }
                self.blocked_on = Some(feed).filter(|feed| feed.is_full());
                LinkEvent::Part
            }
            Some(PartialBody::Assembly(assembly)) => {
                let fits = append_part(assembly, &message);
                if fits && !last {
                    LinkEvent::Part
                } else {
                    self.finish_assembly(envelope.call, fits)
                }
            }
            // Parts of a cancelled body may still be in flight: drop them.
            None => LinkEvent::Part,
        }
    }

    fn finish_assembly(&mut self, call: u64, fits: bool) -> LinkEvent {
        let Some(PartialBody::Assembly(assembly)) = self.partial_bodies.remove(&call) else {
            return LinkEvent::Part;
        };
        let ((first, head), body) = assembly.into_parts();
        if fits {
            LinkEvent::Whole(first, head, body.into())
        } else {
            LinkEvent::Rejected(first)
        }
    }

    pub(super) fn is_blocked(&mut self) -> bool {
        // Checked on demand: a reader on another thread makes room without this link.
        self.blocked_on = self.blocked_on.take().filter(|feed| feed.is_full());
        self.blocked_on.is_some()
    }

    /// Drops a body. Returns true if it was being assembled.
    pub(in crate::endpoint) fn break_body(&mut self, call: u64, why: CallError) -> bool {
        match self.partial_bodies.remove(&call) {
            Some(PartialBody::Stream(feed)) => {
                feed.break_with(why);
                false
            }
            // An event has no answer.
            Some(PartialBody::Assembly(assembly)) => assembly.first.0.kind == MessageKind::Call,
            None => false,
        }
    }

    /// Tells the reader that the body is useless; its end is still expected.
    pub(in crate::endpoint) fn interrupt_reader(&self, call: u64, why: CallError) {
        if let Some(PartialBody::Stream(feed)) = self.partial_bodies.get(&call) {
            feed.break_with(why);
        }
    }

    /// Returns true if the peer's body of this call has a reader.
    pub(in crate::endpoint) fn has_reader(&self, call: u64) -> bool {
        matches!(self.partial_bodies.get(&call), Some(PartialBody::Stream(_)))
    }

    /// Aborts all bodies of a dead peer. Parts that arrived are still read.
    pub(in crate::endpoint) fn break_all_bodies(&mut self, why: CallError) {
        for partial in std::mem::take(&mut self.partial_bodies).into_values() {
            if let PartialBody::Stream(feed) = partial {
                feed.break_with(why);
            }
        }
    }

    /// Streams the response of this call.
    pub(in crate::endpoint) fn stream_response(&mut self, call: u64) {
        self.streamed_responses.insert(call);
    }
}

/// Returns the body of a single-message body.
fn whole_body(message: ReceivedMessage) -> Bytes {
    if message.body_len() == 0 {
        Bytes::new()
    } else {
        Bytes::from_owner(nearpath_shm::MessagePayload::new(message))
    }
}

fn append_part(assembly: &mut BodyAssembly<FirstMessage>, message: &ReceivedMessage) -> bool {
    assembly
        .grow_body(message.body_len() as usize)
        .is_ok_and(|room| message.copy_body(room))
}
