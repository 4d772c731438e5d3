//! Pieces as they are said on the line.

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::control::sequence::SequenceMessage;
use crate::message::{RelayedFrame, SessionIdHex, SessionMessage};
use crate::migrate::StreamFrame;

/// The way to a session's other side over the line.
pub(in crate::control) struct ControlChannel {
    pub(in crate::control) send: Box<dyn Fn(SequenceMessage) + Send>,
    /// The first piece, if it was said before there was a session: with the call.
    pub(in crate::control) hello: Option<Bytes>,
    pub(in crate::control) incoming: mpsc::UnboundedReceiver<SequenceMessage>,
}

/// What is said of a session on a line.
#[derive(Debug)]
pub(in crate::control) enum SessionItem {
    Message(SessionMessage),
    Frame(RelayedFrame),
}

impl SessionItem {
    /// What it takes to keep it.
    pub(in crate::control) fn buffer_cost(&self) -> usize {
        const EACH: usize = 256;
        EACH + match self {
            Self::Message(_) => 0, // the rendezvous bounds them
            Self::Frame(parcel) => parcel.bytes.len(),
        }
    }

    pub(in crate::control) fn from_sequence(
        message: SequenceMessage,
        session: SessionIdHex,
    ) -> Self {
        match message {
            SequenceMessage::Frame {
                number: piece,
                acknowledged: has,
                frame: StreamFrame::Bytes(bytes),
            } => Self::Frame(RelayedFrame {
                session,
                number: piece,
                acknowledged: has,
                bytes,
            }),
            SequenceMessage::Frame {
                number: piece,
                acknowledged: has,
                frame: StreamFrame::Text(text),
            } => Self::Message(SessionMessage::Text { piece, has, text }),
            SequenceMessage::Ack(pieces) => Self::Message(SessionMessage::Has { pieces }),
        }
    }
}

impl TryFrom<SessionItem> for SequenceMessage {
    /// What is no piece.
    type Error = SessionMessage;

    fn try_from(item: SessionItem) -> Result<Self, SessionMessage> {
        match item {
            SessionItem::Frame(RelayedFrame {
                number,
                acknowledged: has,
                bytes,
                ..
            }) => Ok(Self::Frame {
                number,
                acknowledged: has,
                frame: StreamFrame::Bytes(bytes),
            }),
            SessionItem::Message(SessionMessage::Text {
                piece: number,
                has,
                text,
            }) => Ok(Self::Frame {
                number,
                acknowledged: has,
                frame: StreamFrame::Text(text),
            }),
            SessionItem::Message(SessionMessage::Has { pieces }) => Ok(Self::Ack(pieces)),
            SessionItem::Message(other) => Err(other),
        }
    }
}
