//! Errors of sending and receiving.

use super::ChannelState;
use crate::endpoint::AcceptOfferError;
use crate::envelope::EnvelopeError;
use crate::lease::LeaseLost;
use crate::message::OutgoingMessage;
use crate::ring::RingPoisoned;

/// A message that was not sent.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct UnsentMessage {
    /// Cause.
    pub error: ChannelSendError,
    /// The message, unless its slot was lost.
    pub message: Option<OutgoingMessage>,
}

/// Reason why a message was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChannelSendError {
    /// No credit; see [`super::ChannelEnd::request_wakeup`].
    #[error("the ring is full")]
    Full,
    /// The channel is closed.
    #[error("the channel is closed: {0:?}")]
    Closed(ChannelState),
    /// The endpoint no longer held the slot.
    #[error(transparent)]
    LeaseLost(#[from] LeaseLost),
}

/// Reason why nothing was received. All but `Closed` are the peer's fault, and break the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChannelReceiveError {
    /// The channel is closed and empty.
    #[error("the channel is closed: {0:?}")]
    Closed(ChannelState),
    /// The ring indices are impossible.
    #[error(transparent)]
    Poisoned(#[from] RingPoisoned),
    /// The descriptor is invalid, forged or copied.
    #[error(transparent)]
    Refused(#[from] AcceptOfferError),
    /// The envelope is invalid.
    #[error(transparent)]
    Malformed(#[from] EnvelopeError),
}
