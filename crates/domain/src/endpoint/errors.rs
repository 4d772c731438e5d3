//! Errors of calls and bodies.

use nearpath_shm::channel::ChannelState;

use crate::protocol::ChannelError;

/// Reason why nothing was sent: the caller may try another path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnsentReason {
    /// No declared edge, or no ready instance.
    #[error(
        "no peer of that name: the edge is not declared, or no instance is ready on this machine"
    )]
    NoPeer,
    /// The node could not create a channel, and retries.
    #[error("no channel to that function could be made: {0}")]
    NoChannel(ChannelError),
    /// All instances have their maximum of open calls.
    #[error("no instance has credit for another call")]
    NoCredit,
    /// The pool has no free slot of that size, or the endpoint reached its limit.
    #[error("no free slot in the domain's pool")]
    NoSlot,
    /// The head exceeds the largest slot, or a field is invalid.
    #[error("the head is too large, or has an invalid field")]
    BadHead,
    /// The node reclaimed the slot of the body: nothing is left to send on another path.
    #[error("the node reclaimed the slot of the body")]
    BodyLost,
    /// The channel closed meanwhile.
    #[error("the channel is closed: {0:?}")]
    Closed(ChannelState),
}

/// The peer wants no more of a body: the call ended, was cancelled, or the peer is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other side takes no more of this body")]
pub struct BodyUnwanted;

/// Reason why a call has no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The peer has not seen the call.
    #[error("not sent: {0}")]
    Unsent(#[from] UnsentReason),
    /// The peer died or violated the protocol after the call was sent: it may have run.
    #[error("the called instance died before it answered")]
    PeerDied,
    /// The deadline passed after the call was sent; the peer was told.
    #[error("no answer before the deadline")]
    Timeout,
    /// The peer aborted its response or call.
    #[error("the peer aborted its message")]
    Aborted,
    /// The response exceeds the caller's limit, or its head is invalid.
    #[error("the answer is larger than {0} bytes, or its head is invalid")]
    BadAnswer(usize),
}
