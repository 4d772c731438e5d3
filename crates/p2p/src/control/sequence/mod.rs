//! The pieces of a way, numbered by their order, over carriers that come and go. No I/O, no clock.
//!
//! A piece is kept until the peer has it. Carriers are the line, which takes the first few bytes, and connections to the relay, one
//! after the other: on each of these both sides first say from which piece they go on and how many they have, and then go on; nobody
//! waits for the other's word. What comes a second time is dropped. So it does not matter when which carrier breaks.

mod incoming;
mod outgoing;
mod resume_point;

use incoming::IncomingFrames;
use outgoing::OutgoingFrames;
use resume_point::ResumePoint;

use bytes::Bytes;

use crate::message::MAX_PAYLOAD_BYTES;
use crate::migrate::StreamFrame;

/// The peer does not keep to the contract, or a carrier has changed what it said: nothing of it can be relied upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum SequenceError {
    /// Pieces are missing between what came and what comes next.
    #[error("the peer goes on from piece {from}, and {has} have come")]
    Gap { from: u64, has: u64 },
    /// It has more than there are.
    #[error("the peer says to have {has} pieces of {sent}")]
    Unsent { has: u64, sent: u64 },
    /// It begins a connection with something else than where it goes on.
    #[error("the peer did not say from which piece it goes on")]
    MissingResumePoint,
}

/// At most so many bytes are kept for the peer in one direction, each piece with what keeping it costs; beyond that, a writer waits.
/// It is what may be on its way at a time: 400 Mbit/s at 80 ms between the peers.
const MAX_UNACKNOWLEDGED_BYTES: usize = 4 << 20;
/// What a piece costs beside its bytes.
const FRAME_OVERHEAD_BYTES: usize = 256;
/// The peer is told what has come each time that so much has; on the line, so much.
const ACK_EVERY_BYTES: usize = MAX_UNACKNOWLEDGED_BYTES / 16;
const CONTROL_ACK_EVERY_BYTES: usize = MAX_CONTROL_IN_FLIGHT_BYTES / 2;
/// So much may be on its way on the line: what lies at the rendezvous for a worker that a thousand peers write to is bounded.
const MAX_CONTROL_IN_FLIGHT_BYTES: usize = 64 << 10;
/// A piece has so many bytes at least there, if there are as many: otherwise each acknowledgement makes room for a small one.
const MIN_CONTROL_FRAME_BYTES: usize = 4 << 10;

/// The last piece of a side: it says nothing more.
const END_FRAME: &str = r#"{"over":{}}"#;

/// What the line takes of a side's beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ControlQuota {
    bytes: usize,
    frames: u64,
}

impl ControlQuota {
    /// Enough to shake hands, and to move to a direct way that comes soon.
    pub(super) const HANDSHAKE: Self = Self {
        bytes: 16 << 10,
        frames: 64,
    };
    /// Enough for a link that carries little.
    pub(super) const SHORT_LINK: Self = Self {
        bytes: 256 << 10,
        frames: 512,
    };
}

/// What is said on the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SequenceMessage {
    /// A piece, its number, and how many the sender has of the other side's.
    Frame {
        number: u64,
        acknowledged: u64,
        frame: StreamFrame,
    },
    /// How many the sender has.
    Ack(u64),
}

/// See the module.
#[derive(Debug)]
pub(super) struct FrameSequence {
    outgoing: OutgoingFrames,
    incoming: IncomingFrames,
    control: ControlCursor,
    relay: Option<RelayCursor>,
    /// The peer is to be told what has come.
    ack_due: bool,
    /// The last piece was given for sending.
    ended: bool,
}

/// How far the line is.
#[derive(Debug, Clone, Copy)]
struct ControlCursor {
    /// The next piece to be said.
    next: u64,
    /// It takes so many bytes more.
    bytes_left: usize,
    quota: ControlQuota,
}

/// How far a connection to the relay is.
#[derive(Debug, Default)]
struct RelayCursor {
    /// The next piece to be sent, once it was said which that is.
    next_out: Option<u64>,
    /// The next piece to come, likewise.
    next_in: Option<u64>,
}

fn frame_cost(frame: &StreamFrame) -> usize {
    FRAME_OVERHEAD_BYTES
        + match frame {
            StreamFrame::Bytes(bytes) => bytes.len(),
            StreamFrame::Text(text) => text.len(),
        }
}

/// For the user: what is to be sent, and what has come.
impl FrameSequence {
    /// Nothing was sent, nothing came.
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
            control: control,
            relay: None,
            ack_due: false,
            ended: false,
        }
    }

    /// The first piece was said before there was a session. It is kept like any other, and is not said on the line again.
    pub(super) fn with_hello(hello: Bytes, quota: ControlQuota) -> Self {
        let mut sequence = Self::new(quota);
        sequence.control.next = 1;
        sequence.control.bytes_left = sequence.control.bytes_left.saturating_sub(hello.len());
        sequence.outgoing.push(StreamFrame::Bytes(hello));
        sequence
    }

    /// Whether a piece more may be kept.
    pub(super) fn has_room(&self) -> bool {
        self.outgoing.cost() < MAX_UNACKNOWLEDGED_BYTES
    }

    /// How many bytes the next piece may have to go over the line.
    pub(super) fn control_room(&self) -> usize {
        let is_next = self.control.next == self.outgoing.next_number()
            && self.control.next < self.control.quota.frames;
        let room = MAX_CONTROL_IN_FLIGHT_BYTES.saturating_sub(self.outgoing.cost());
        if is_next && room >= MIN_CONTROL_FRAME_BYTES {
            self.control.bytes_left.min(room).min(MAX_PAYLOAD_BYTES)
        } else {
            0
        }
    }

    /// Whether what the line takes is half used up.
    pub(super) fn is_quota_half_used(&self) -> bool {
        let ControlCursor {
            next,
            bytes_left: left,
            quota: share,
        } = self.control;
        left <= share.bytes / 2 || next >= share.frames / 2
    }

    /// The next piece; none after [`Self::end`].
    pub(super) fn push_frame(&mut self, frame: StreamFrame) {
        debug_assert!(!self.ended, "what is over says nothing more");
        self.outgoing.push(frame);
    }

    /// There are no more. To be said twice is as good as once.
    pub(super) fn push_end(&mut self) {
        if !self.ended {
            self.push_frame(StreamFrame::Text(END_FRAME.to_owned()));
            self.ended = true;
        }
    }

    /// The next piece of the peer's, once.
    pub(super) fn take_frame(&mut self) -> Option<StreamFrame> {
        let frame = self.incoming.deliver()?;
        // A word decides something, and there may be nothing after it that would tell that it came.
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

    /// Whether the peer says nothing more, and all of it was taken.
    pub(super) fn has_peer_ended(&self) -> bool {
        self.incoming.is_ended()
    }

    /// Whether pieces wait to be taken, as many as a peer may send.
    pub(super) fn is_full(&self) -> bool {
        self.incoming.buffered_cost() >= 2 * MAX_UNACKNOWLEDGED_BYTES
    }

    /// Whether the peer has all that was sent; and all but the word that nothing more comes.
    pub(super) fn acknowledgement_state(&self) -> (bool, bool) {
        let left = self.outgoing.next_number() - self.outgoing.first();
        (left == 0, left <= u64::from(self.ended))
    }

    /// The first piece that the peer is not known to have.
    pub(super) fn first_unacknowledged(&self) -> u64 {
        self.outgoing.first()
    }

    /// Whether pieces were taken of which the peer has not heard.
    pub(super) fn has_unsent_ack(&self) -> bool {
        self.incoming.unacknowledged_cost() > 0
    }

    /// Whether the peer is to hear what was taken now.
    pub(super) fn is_ack_due(&self) -> bool {
        self.ack_due
    }

    /// The peer shall hear what was taken.
    pub(super) fn request_ack(&mut self) {
        self.ack_due |= self.has_unsent_ack();
    }
}

/// For the line.
impl FrameSequence {
    /// What is to be said next.
    pub(super) fn next_control_message(&mut self) -> Option<SequenceMessage> {
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

    /// Whether everything was said there.
    pub(super) fn is_control_drained(&self) -> bool {
        self.control.next >= self.outgoing.next_number()
    }

    /// Whether the peer has not acknowledged what was said there.
    pub(super) fn awaits_control_ack(&self) -> bool {
        self.control.next > self.outgoing.first()
    }

    /// What the peer says there. Whether it would leave a gap: then it is no use, and comes again.
    pub(super) fn handle_control_message(
        &mut self,
        message: SequenceMessage,
    ) -> Result<bool, SequenceError> {
        let (SequenceMessage::Frame {
            acknowledged: has, ..
        }
        | SequenceMessage::Ack(has)) = message;
        self.outgoing.acknowledge(has)?;
        let SequenceMessage::Frame {
            number,
            frame: piece,
            ..
        } = message
        else {
            return Ok(false);
        };
        if number == self.incoming.next_number() {
            self.incoming.push(piece);
            return Ok(false);
        }
        Ok(number > self.incoming.next_number())
    }

    fn take_ack(&mut self) -> u64 {
        self.ack_due = false;
        self.incoming.acknowledge()
    }
}

/// For a connection to the relay.
impl FrameSequence {
    /// There is a new one.
    pub(super) fn attach_relay(&mut self) {
        self.relay = Some(RelayCursor::default());
    }

    /// It is gone.
    pub(super) fn detach_relay(&mut self) {
        self.relay = None;
    }

    /// Whether [`Self::frame`] has one.
    pub(super) fn has_relay_frame(&self) -> bool {
        let has_next = |relay: &RelayCursor| {
            relay
                .next_out
                .is_none_or(|next| self.ack_due || next < self.outgoing.next_number())
        };
        self.relay.as_ref().is_some_and(has_next)
    }

    /// What is to be sent next.
    pub(super) fn next_relay_frame(&mut self) -> Option<StreamFrame> {
        let (first, ack_due) = (self.outgoing.first(), self.ack_due);
        let relay = self.relay.as_mut()?;
        let Some(next) = relay.next_out.filter(|next| *next >= first) else {
            // At first, and when the peer turned out to have what comes next.
            relay.next_out = Some(first);
            return Some(
                ResumePoint::On {
                    from: first,
                    has: self.take_ack(),
                }
                .to_frame(),
            );
        };
        if ack_due {
            return Some(
                ResumePoint::Has {
                    pieces: self.take_ack(),
                }
                .to_frame(),
            );
        }
        let frame = self.outgoing.get(next)?.clone();
        relay.next_out = Some(next + 1);
        Some(frame)
    }

    /// What came. Whether the peer goes on.
    pub(super) fn handle_relay_frame(&mut self, frame: StreamFrame) -> Result<bool, SequenceError> {
        let resume_point = ResumePoint::from_frame(&frame);
        let received = self.incoming.next_number();
        let relay = self
            .relay
            .as_mut()
            .ok_or(SequenceError::MissingResumePoint)?;
        match (relay.next_in, resume_point) {
            (_, Some(ResumePoint::On { from, .. })) if from > received => {
                return Err(SequenceError::Gap {
                    from,
                    has: received,
                });
            }
            (_, Some(ResumePoint::On { from, .. })) => relay.next_in = Some(from),
            (Some(_), Some(ResumePoint::Has { .. })) => (),
            (Some(number), None) => {
                relay.next_in = Some(number + 1);
                if number == received {
                    self.incoming.push(frame);
                }
            }
            (None, _) => return Err(SequenceError::MissingResumePoint),
        }
        if let Some(ResumePoint::On { has, .. } | ResumePoint::Has { pieces: has }) = resume_point {
            self.outgoing.acknowledge(has)?;
        }
        Ok(matches!(resume_point, Some(ResumePoint::On { .. })))
    }
}

#[cfg(test)]
mod tests;
