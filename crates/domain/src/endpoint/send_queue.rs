//! Writing messages into slots, and queued first messages.

use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use nearpath_shm::channel::UnsentMessage;
use nearpath_shm::envelope::{self, TOTAL_UNKNOWN, flag};
use nearpath_shm::{
    ChannelEnd, Envelope, Lease, MessageDraft, MessageKind, OutgoingMessage, OwnedSlot,
    PoolEndpoint,
};

use super::body_flow::{BodyFlow, SentPart};
use super::part_sending::{SendProgress, claim_for_body, has_ring_room, send_draft, unsent_reason};
use super::payload::{BodySource, CallBody};
use super::types::{FieldSlice, OwnedField, UnsentReason};

/// Maximum space before a message that is smaller than its slot; a multiple of a cache line.
const MAX_LEADING_BYTES: usize = 128;
const CACHE_LINE_BYTES: u32 = 64;
const BAD_HEAD_TEXT: &[u8] = b"the function's answer has a head that cannot be sent\n";
const LOST_BODY_TEXT: &[u8] = b"the function's answer lay in memory that was taken from it\n";

/// Extent of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyExtent {
    /// The body is complete.
    Complete,
    /// More will be written; the total size, if known.
    Open(Option<u64>),
}

/// Sends the first message of a body: moves its slot if possible, else copies. The remainder, if
/// any, becomes a flow.
pub(super) fn begin_message(
    end: &mut ChannelEnd,
    member: &Arc<PoolEndpoint>,
    envelope: Envelope,
    fields: FieldSlice<'_>,
    load: &mut BodySource<'_>,
    whole: BodyExtent,
) -> Result<Option<BodyFlow>, UnsentReason> {
    // Only a complete body is moved: the writer of an open one appends to it.
    if whole == BodyExtent::Complete
        && let BodySource::Owned(body) = load
        && let Some(slot) = body.take_slot(member)
    {
        match send_slot(end, slot, envelope, fields) {
            Ok(()) => return Ok(None),
            // The node took the slot, and the body with it: neither retry nor copy is possible.
            Err((_, None)) => return Err(UnsentReason::BodyLost),
            Err((why, Some(slot))) => {
                body.restore_slot(slot);
                why.map_or(Ok(()), Err)?; // without a reason: copy it instead
            }
        }
    }
    send_copy(end, member, envelope, fields, load.bytes(), whole)
}

/// Sends a body in place. An unsent body is returned; without a reason when its head does not fit
/// before it.
fn send_slot(
    end: &mut ChannelEnd,
    slot: OwnedSlot,
    envelope: Envelope,
    fields: FieldSlice<'_>,
) -> Result<(), (Option<UnsentReason>, Option<OwnedSlot>)> {
    let draft = slot
        .into_draft(fields)
        .map_err(|(slot, _)| (None, Some(slot)))?;
    end.send_message(draft.finish(envelope)).map_err(
        |UnsentMessage {
             error: why,
             message,
         }| {
            let slot = message.and_then(OutgoingMessage::into_owned_slot);
            (Some(unsent_reason(why)), slot)
        },
    )
}

fn send_copy(
    end: &mut ChannelEnd,
    member: &Arc<PoolEndpoint>,
    mut envelope: Envelope,
    fields: FieldSlice<'_>,
    body: &Bytes,
    whole: BodyExtent,
) -> Result<Option<BodyFlow>, UnsentReason> {
    let head: usize = fields
        .iter()
        .map(|(name, value)| 4 + name.len() + value.len())
        .sum();
    let head = u32::try_from(head)
        .ok()
        .filter(|head| *head <= envelope::MAX_HEAD_BYTES)
        .ok_or(UnsentReason::BadHead)?;
    // May be smaller than the body: the rest becomes a flow of parts.
    let lease = claim_for_body(member, envelope::body_offset(head), body.len())?;
    let start = leading_space(&lease, envelope::body_offset(head), body.len());
    let mut draft = MessageDraft::with_start(lease, start);
    for (name, value) in fields {
        draft
            .add_field(name, value)
            .map_err(|_| UnsentReason::BadHead)?;
    }
    let bytes = body.len().min(draft.body_capacity() as usize);
    let open = whole != BodyExtent::Complete;
    envelope.total = match whole {
        BodyExtent::Complete => body.len() as u64,
        // Never less than this part: receivers refuse such an envelope.
        BodyExtent::Open(total) => total.unwrap_or(TOTAL_UNKNOWN).max(bytes as u64),
    };
    if bytes == body.len() && !open {
        return send_draft(end, draft, envelope, body, false).map(|()| None);
    }
    let ticket = SentPart::from_lease(draft.lease());
    send_draft(end, draft, envelope, &body[..bytes], true)?;
    Ok(Some(BodyFlow::new(
        envelope,
        body.slice(bytes..),
        open,
        ticket,
    )))
}

/// Returns the space to leave before a message, so that its body can be forwarded under a longer
/// head.
fn leading_space(lease: &Lease, start: u32, body: usize) -> u32 {
    let left = (lease.slot_size() - start) as usize;
    left.saturating_sub(body).min(MAX_LEADING_BYTES) as u32 / CACHE_LINE_BYTES * CACHE_LINE_BYTES
}

/// A first message that was not sent yet.
#[derive(Debug)]
pub(super) struct QueuedMessage {
    pub(super) envelope: Envelope,
    fields: Vec<OwnedField>,
    body: CallBody,
    extent: BodyExtent,
    /// Waker of the writer; it can write only after the message was sent.
    pub(super) writer: Option<Waker>,
}

impl QueuedMessage {
    pub(super) fn new(
        envelope: Envelope,
        fields: Vec<OwnedField>,
        body: CallBody,
        whole: BodyExtent,
    ) -> Self {
        Self {
            envelope,
            fields,
            body,
            extent: whole,
            writer: None,
        }
    }

    /// Creates a message that cancels a call.
    pub(super) fn cancel_message(call: u64) -> Self {
        Self::new(
            Envelope::new(MessageKind::Cancel, call),
            Vec::new(),
            CallBody::default(),
            BodyExtent::Complete,
        )
    }

    /// Sends the message if possible. The remainder of the body becomes a flow.
    pub(super) fn try_send(
        &mut self,
        end: &mut ChannelEnd,
        member: &Arc<PoolEndpoint>,
    ) -> Result<Option<BodyFlow>, SendProgress> {
        // Checked before the slot is claimed and written, which would be in vain.
        if !has_ring_room(end, false) {
            return Err(SendProgress::NeedsRoom);
        }
        let fields: Vec<(&str, &[u8])> = self
            .fields
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        let load = &mut BodySource::Owned(&mut self.body);
        begin_message(end, member, self.envelope, &fields, load, self.extent).map_err(|why| {
            match why {
                UnsentReason::NoCredit => SendProgress::NeedsRoom,
                UnsentReason::NoSlot => SendProgress::NeedsSlot,
                UnsentReason::BodyLost => {
                    // Replaced here and sent by the next attempt: the caller waits for an answer.
                    *self = Self::lost_body_response(self.envelope);
                    SendProgress::NeedsRoom
                }
                _ => SendProgress::Impossible,
            }
        })
    }

    /// Returns the error response that replaces a response with an invalid head.
    pub(super) fn bad_head_response(&self) -> Option<Self> {
        let writable = self.envelope.kind != MessageKind::Answer || self.fields.is_empty();
        let envelope = Envelope {
            status: 502,
            flags: flag::PLATFORM,
            ..self.envelope
        };
        (!writable).then(|| {
            Self::new(
                envelope,
                Vec::new(),
                Bytes::from_static(BAD_HEAD_TEXT).into(),
                BodyExtent::Complete,
            )
        })
    }

    /// Returns the error response that replaces a response whose body was lost.
    pub(super) fn lost_body_response(envelope: Envelope) -> Self {
        let envelope = Envelope {
            status: 502,
            flags: flag::PLATFORM,
            ..envelope
        };
        Self::new(
            envelope,
            Vec::new(),
            Bytes::from_static(LOST_BODY_TEXT).into(),
            BodyExtent::Complete,
        )
    }

    /// Ends the body.
    pub(super) fn close_input(&mut self) {
        self.extent = BodyExtent::Complete;
    }

    /// Returns true if the writer may write more after the message was sent.
    pub(super) fn is_open(&self) -> bool {
        self.extent != BodyExtent::Complete
    }
}

impl Drop for QueuedMessage {
    fn drop(&mut self) {
        self.writer.take().into_iter().for_each(Waker::wake);
    }
}
