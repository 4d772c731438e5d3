//! Why a message was not sent, or not received.

use super::State;
use crate::envelope::BadEnvelope;
use crate::lease::Lost;
use crate::member::NotAccepted;
use crate::message::Outgoing;
use crate::ring::Poisoned;

/// A message that was not sent.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct NotSent {
    /// Why.
    pub why: SendFault,
    /// The message, unless its slot was lost.
    pub message: Option<Outgoing>,
}

/// Why a message was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendFault {
    /// No credit; see [`End::starve`].
    #[error("the ring is full")]
    Full,
    /// The channel is of no use any more.
    #[error("the channel is closed: {0:?}")]
    Closed(State),
    /// The slot was not this party's any more.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// Why nothing was received. All but `Closed` are the peer's fault, and close the channel as broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveFault {
    /// The channel is closed and empty.
    #[error("the channel is closed: {0:?}")]
    Closed(State),
    /// The ring's indices are impossible.
    #[error(transparent)]
    Poisoned(#[from] Poisoned),
    /// The descriptor is impossible, forged or stolen.
    #[error(transparent)]
    Refused(#[from] NotAccepted),
    /// The message is no message.
    #[error(transparent)]
    Malformed(#[from] BadEnvelope),
}
