//! Frames of a stream, as messages of the control connection.

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::control::sequence::SequenceMessage;
use crate::message::{RelayedFrame, SessionIdHex, SessionMessage};
use crate::migrate::StreamFrame;

/// Channel to the other side of a session over the control connection.
pub(in crate::control) struct ControlChannel {
    pub(in crate::control) send: Box<dyn Fn(SequenceMessage) + Send>,
    /// First frame, if it travelled with the call before there was a session.
    pub(in crate::control) hello: Option<Bytes>,
    pub(in crate::control) incoming: mpsc::UnboundedReceiver<SequenceMessage>,
}

/// Message or frame of a session on a control connection.
#[derive(Debug)]
pub(in crate::control) enum SessionItem {
    Message(SessionMessage),
    Frame(RelayedFrame),
}

impl SessionItem {
    /// Returns the memory that a buffered item uses, in bytes.
    pub(in crate::control) fn buffer_cost(&self) -> usize {
        const EACH: usize = 256;
        EACH + match self {
            Self::Message(_) => 0, // the rendezvous bounds messages
            Self::Frame(frame) => frame.bytes.len(),
        }
    }

    pub(in crate::control) fn from_sequence(
        message: SequenceMessage,
        session: SessionIdHex,
    ) -> Self {
        match message {
            SequenceMessage::Frame {
                number,
                acknowledged,
                frame: StreamFrame::Bytes(bytes),
            } => Self::Frame(RelayedFrame {
                session,
                number,
                acknowledged,
                bytes,
            }),
            SequenceMessage::Frame {
                number,
                acknowledged,
                frame: StreamFrame::Text(text),
            } => Self::Message(SessionMessage::Text {
                number,
                acknowledged,
                text,
            }),
            SequenceMessage::Ack(acknowledged) => {
                Self::Message(SessionMessage::Ack { acknowledged })
            }
        }
    }
}

impl TryFrom<SessionItem> for SequenceMessage {
    /// Message that belongs to the punching state machine.
    type Error = SessionMessage;

    fn try_from(item: SessionItem) -> Result<Self, SessionMessage> {
        match item {
            SessionItem::Frame(RelayedFrame {
                number,
                acknowledged,
                bytes,
                ..
            }) => Ok(Self::Frame {
                number,
                acknowledged,
                frame: StreamFrame::Bytes(bytes),
            }),
            SessionItem::Message(SessionMessage::Text {
                number,
                acknowledged,
                text,
            }) => Ok(Self::Frame {
                number,
                acknowledged,
                frame: StreamFrame::Text(text),
            }),
            SessionItem::Message(SessionMessage::Ack { acknowledged }) => {
                Ok(Self::Ack(acknowledged))
            }
            SessionItem::Message(other) => Err(other),
        }
    }
}
