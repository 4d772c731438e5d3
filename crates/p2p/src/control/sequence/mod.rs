//! Frames of a stream, numbered by their order, over carriers that come and go. No I/O, no clock.
//!
//! A frame is kept until the peer has it. Carriers are the control connection, which takes the
//! first bytes, and connections to the relay, one after the other. On each relay connection both
//! sides first send their resume point and continue at once; neither waits for the other. Repeated
//! frames are dropped, so it does not matter which carrier breaks when (decision 48).

mod incoming;
mod outgoing;
mod resume_point;

use incoming::IncomingFrames;
use outgoing::OutgoingFrames;
use resume_point::ResumePoint;

use bytes::Bytes;

use crate::message::MAX_PAYLOAD_BYTES;
use crate::migrate::StreamFrame;

/// Peer violates the contract, or a carrier changed its data: nothing of it can be relied upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum SequenceError {
    /// Frames are missing between the received ones and the next.
    #[error("the peer continues from frame {from}, but {has} have arrived")]
    Gap { from: u64, has: u64 },
    /// Peer acknowledges frames that were not sent.
    #[error("the peer acknowledges {has} frames of {sent}")]
    Unsent { has: u64, sent: u64 },
    /// Connection does not begin with a resume point.
    #[error("the peer sent no resume point")]
    MissingResumePoint,
}

/// Maximum of unacknowledged bytes per direction, with each frame's overhead; above it a writer
/// waits.
///
/// The bound limits the data in flight: 400 Mbit/s at 80 ms between the peers.
const MAX_UNACKNOWLEDGED_BYTES: usize = 4 << 20;
/// Memory overhead of a frame, in bytes.
const FRAME_OVERHEAD_BYTES: usize = 256;
/// Bytes after which an acknowledgement is due on the relay.
const ACK_EVERY_BYTES: usize = MAX_UNACKNOWLEDGED_BYTES / 16;
// Half of what may be in flight: the sender gets capacity back before it stalls.
const CONTROL_ACK_EVERY_BYTES: usize = MAX_CONTROL_IN_FLIGHT_BYTES / 2;
/// Maximum of bytes in flight on the control connection: a thousand peers may write to one worker
/// at once.
const MAX_CONTROL_IN_FLIGHT_BYTES: usize = 64 << 10;
/// Minimum size of a frame there, if there are as many bytes: each acknowledgement would otherwise
/// free a tiny frame.
const MIN_CONTROL_FRAME_BYTES: usize = 4 << 10;

/// Last frame of a side.
const END_FRAME: &str = r#"{"over":{}}"#;

/// Share of a stream's beginning that the control connection carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ControlQuota {
    bytes: usize,
    frames: u64,
}

impl ControlQuota {
    /// Handshake, and an early migration.
    pub(super) const HANDSHAKE: Self = Self {
        bytes: 16 << 10,
        frames: 64,
    };
    /// All of a link that carries little.
    pub(super) const SHORT_LINK: Self = Self {
        bytes: 256 << 10,
        frames: 512,
    };
}

/// Message on the control connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SequenceMessage {
    /// Frame with its number, and the number of frames received from the other side.
    Frame {
        number: u64,
        acknowledged: u64,
        frame: StreamFrame,
    },
    /// Number of frames received.
    Ack(u64),
}

/// Numbered frames of both directions; see the module.
#[derive(Debug)]
pub(super) struct FrameSequence {
    outgoing: OutgoingFrames,
    incoming: IncomingFrames,
    control: ControlCursor,
    relay: Option<RelayCursor>,
    /// True if an acknowledgement is due.
    ack_due: bool,
    /// True if the last frame was queued.
    ended: bool,
}

/// Position on the control connection.
#[derive(Debug, Clone, Copy)]
struct ControlCursor {
    /// Next frame to send.
    next: u64,
    /// Remaining bytes of the quota.
    bytes_left: usize,
    quota: ControlQuota,
}

/// Position on a connection to the relay.
#[derive(Debug, Default)]
struct RelayCursor {
    /// Next frame to send, once the resume point was sent.
    next_out: Option<u64>,
    /// Next frame to receive, likewise.
    next_in: Option<u64>,
}

fn frame_cost(frame: &StreamFrame) -> usize {
    FRAME_OVERHEAD_BYTES
        + match frame {
            StreamFrame::Bytes(bytes) => bytes.len(),
            StreamFrame::Text(text) => text.len(),
        }
}

/// User's side: frames to send, and received frames.
impl FrameSequence {
    /// Creates an empty sequence.
    pub(super) fn new(quota: ControlQuota) -> Self {
        let control = ControlCursor {
            next: 0,
            bytes_left: quota.bytes,
            quota,
        };
        let (outgoing, incoming) = Default::default();
        Self {
            outgoing,
            incoming,
            control,
            relay: None,
            ack_due: false,
            ended: false,
        }
    }

    /// Creates a sequence whose first frame travelled with the call.
    ///
    /// The frame is kept like any other, and is not sent on the control connection again.
    pub(super) fn with_hello(hello: Bytes, quota: ControlQuota) -> Self {
        let mut sequence = Self::new(quota);
        sequence.control.next = 1;
        sequence.control.bytes_left = sequence.control.bytes_left.saturating_sub(hello.len());
        sequence.outgoing.push(StreamFrame::Bytes(hello));
        sequence
    }

    /// Returns whether another frame may be queued.
    pub(super) fn has_room(&self) -> bool {
        // One frame above the limit is allowed: a frame cannot be split.
        self.outgoing.cost() < MAX_UNACKNOWLEDGED_BYTES
    }

    /// Returns the largest payload of the next frame that fits the control connection.
    pub(super) fn control_room(&self) -> usize {
        // Only the next frame in order: a later one would be a gap for the reader.
        let is_next = self.control.next == self.outgoing.next_number()
            && self.control.next < self.control.quota.frames;
        let room = MAX_CONTROL_IN_FLIGHT_BYTES.saturating_sub(self.outgoing.cost());
        if is_next && room >= MIN_CONTROL_FRAME_BYTES {
            self.control.bytes_left.min(room).min(MAX_PAYLOAD_BYTES)
        } else {
            0
        }
    }

    /// Returns whether half of the quota is used.
    pub(super) fn is_quota_half_used(&self) -> bool {
        let ControlCursor {
            next,
            bytes_left: left,
            quota: share,
        } = self.control;
        left <= share.bytes / 2 || next >= share.frames / 2
    }

    /// Queues a frame; none after [`Self::push_end`].
    pub(super) fn push_frame(&mut self, frame: StreamFrame) {
        debug_assert!(!self.ended, "what is over says nothing more");
        self.outgoing.push(frame);
    }

    /// Queues the end frame, once.
    pub(super) fn push_end(&mut self) {
        if !self.ended {
            self.push_frame(StreamFrame::Text(END_FRAME.to_owned()));
            self.ended = true;
        }
    }

    /// Takes the peer's next frame.
    pub(super) fn take_frame(&mut self) -> Option<StreamFrame> {
        let frame = self.incoming.deliver()?;
        // A message triggers the next step, and nothing may follow it that would carry the
        // acknowledgement.
        let ack_every = if self.relay.is_some() {
            ACK_EVERY_BYTES
        } else {
            CONTROL_ACK_EVERY_BYTES
        };
        self.ack_due |= matches!(frame, StreamFrame::Text(_))
            || self.incoming.unacknowledged_cost() >= ack_every;
        if self.incoming.is_ended() {
            None
        } else {
            Some(frame)
        }
    }

    /// Returns whether the peer has ended, and all its frames were taken.
    pub(super) fn has_peer_ended(&self) -> bool {
        self.incoming.is_ended()
    }

    /// Returns whether as many frames wait for the reader as a peer may send.
    pub(super) fn is_full(&self) -> bool {
        self.incoming.buffered_cost() >= 2 * MAX_UNACKNOWLEDGED_BYTES
    }

    /// Returns whether the peer has all frames; and all but the end frame.
    pub(super) fn acknowledgement_state(&self) -> (bool, bool) {
        let left = self.outgoing.next_number() - self.outgoing.first();
        // Twice what a correct peer may have unacknowledged: only one that ignores the limit gets
        // here.
        (left == 0, left <= u64::from(self.ended))
    }

    /// Returns the first frame that is not acknowledged.
    pub(super) fn first_unacknowledged(&self) -> u64 {
        self.outgoing.first()
    }

    /// Returns whether frames were taken that are not acknowledged.
    pub(super) fn has_unsent_ack(&self) -> bool {
        self.incoming.unacknowledged_cost() > 0
    }

    /// Returns whether an acknowledgement is due.
    pub(super) fn is_ack_due(&self) -> bool {
        self.ack_due
    }

    /// Requests an acknowledgement of the taken frames.
    pub(super) fn request_ack(&mut self) {
        self.ack_due |= self.has_unsent_ack();
    }
}

/// Control connection's side.
impl FrameSequence {
    /// Takes the next message.
    pub(super) fn next_control_message(&mut self) -> Option<SequenceMessage> {
        // Frames that the relay delivered need not be sent here.
        self.control.next = self.control.next.max(self.outgoing.first());
        let (number, left) = (self.control.next, self.control.bytes_left);
        let bytes = |frame: &StreamFrame| {
            if let StreamFrame::Bytes(bytes) = frame {
                bytes.len()
            } else {
                0
            }
        };
        let max_frames = self.control.quota.frames;
        let fits = |frame: &&StreamFrame| {
            number < max_frames && bytes(frame) <= left.min(MAX_PAYLOAD_BYTES)
        };
        if let Some(frame) = self.outgoing.get(number).filter(fits).cloned() {
            self.control.next += 1;
            self.control.bytes_left -= bytes(&frame);
            return Some(SequenceMessage::Frame {
                number,
                acknowledged: self.take_ack(),
                frame,
            });
        }
        self.ack_due.then(|| SequenceMessage::Ack(self.take_ack()))
    }

    /// Returns whether every frame was sent there.
    pub(super) fn is_control_drained(&self) -> bool {
        self.control.next >= self.outgoing.next_number()
    }

    /// Returns whether frames sent there are not acknowledged.
    pub(super) fn awaits_control_ack(&self) -> bool {
        self.control.next > self.outgoing.first()
    }

    /// Handles a message. Returns whether its frame would leave a gap; such a frame is dropped and
    /// comes again.
    pub(super) fn handle_control_message(
        &mut self,
        message: SequenceMessage,
    ) -> Result<bool, SequenceError> {
        let (SequenceMessage::Frame { acknowledged, .. } | SequenceMessage::Ack(acknowledged)) =
            message;
        self.outgoing.acknowledge(acknowledged)?;
        let SequenceMessage::Frame { number, frame, .. } = message else {
            return Ok(false);
        };
        if number == self.incoming.next_number() {
            self.incoming.push(frame);
            return Ok(false);
        }
        Ok(number > self.incoming.next_number())
    }

    fn take_ack(&mut self) -> u64 {
        // Every message carries the acknowledgement, so sending one clears the request.
        self.ack_due = false;
        self.incoming.acknowledge()
    }
}

/// Relay's side.
impl FrameSequence {
    /// Starts a new connection.
    pub(super) fn attach_relay(&mut self) {
        self.relay = Some(RelayCursor::default());
    }

    /// Ends the connection.
    pub(super) fn detach_relay(&mut self) {
        self.relay = None;
    }

    /// Returns whether [`Self::next_relay_frame`] has one.
    pub(super) fn has_relay_frame(&self) -> bool {
        let has_next = |relay: &RelayCursor| {
            relay
                .next_out
                .is_none_or(|next| self.ack_due || next < self.outgoing.next_number())
        };
        self.relay.as_ref().is_some_and(has_next)
    }

    /// Takes the next frame to send.
    pub(super) fn next_relay_frame(&mut self) -> Option<StreamFrame> {
        let (first, ack_due) = (self.outgoing.first(), self.ack_due);
        let relay = self.relay.as_mut()?;
        let Some(next) = relay.next_out.filter(|next| *next >= first) else {
            // On a new connection, and when the peer turns out to have the next frame already.
            relay.next_out = Some(first);
            return Some(
                ResumePoint::Resume {
                    from: first,
                    acknowledged: self.take_ack(),
                }
                .to_frame(),
            );
        };
        if ack_due {
            return Some(
                ResumePoint::Ack {
                    acknowledged: self.take_ack(),
                }
                .to_frame(),
            );
        }
        let frame = self.outgoing.get(next)?.clone();
        relay.next_out = Some(next + 1);
        Some(frame)
    }

    /// Handles a received frame. Returns whether it was a resume point.
    pub(super) fn handle_relay_frame(&mut self, frame: StreamFrame) -> Result<bool, SequenceError> {
        // Parsed before the number is assigned: resume points have none.
        let resume_point = ResumePoint::from_frame(&frame);
        let received = self.incoming.next_number();
        let relay = self
            .relay
            .as_mut()
            .ok_or(SequenceError::MissingResumePoint)?;
        match (relay.next_in, resume_point) {
            (_, Some(ResumePoint::Resume { from, .. })) if from > received => {
                return Err(SequenceError::Gap {
                    from,
                    has: received,
                });
            }
            (_, Some(ResumePoint::Resume { from, .. })) => relay.next_in = Some(from),
            (Some(_), Some(ResumePoint::Ack { .. })) => (),
            (Some(number), None) => {
                relay.next_in = Some(number + 1);
                // A repeated frame counts on this connection but is not delivered twice.
                if number == received {
                    self.incoming.push(frame);
                }
            }
            (None, _) => return Err(SequenceError::MissingResumePoint),
        }
        if let Some(ResumePoint::Resume { acknowledged, .. } | ResumePoint::Ack { acknowledged }) =
            resume_point
        {
            self.outgoing.acknowledge(acknowledged)?;
        }
        Ok(matches!(resume_point, Some(ResumePoint::Resume { .. })))
    }
}

#[cfg(test)]
mod tests;
