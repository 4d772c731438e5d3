//! Owners of endpoints, and actions of the topology.

use nearpath_shm::EndpointId;
use nearpath_types::{FunctionId, InstanceId};

use crate::protocol::ChannelEnding;

use super::ChannelNumber;

/// Owner of an endpoint, known from the socket on which it connected.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndpointOwner {
    /// The gateway, which may call every function.
    Gateway,
    /// An instance of a function.
    Instance(InstanceId, FunctionId),
}

impl EndpointOwner {
    /// Returns the function; none for the gateway.
    pub fn function(&self) -> Option<&FunctionId> {
        match self {
            Self::Gateway => None,
            Self::Instance(_, function) => Some(function),
        }
    }

    /// Returns the instance; none for the gateway.
    pub fn instance(&self) -> Option<InstanceId> {
        match self {
            Self::Gateway => None,
            Self::Instance(instance, _) => Some(*instance),
        }
    }
}

/// Action to execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopologyAction {
    /// Create a channel and introduce both sides.
    Open {
        /// Number of the channel, never used before.
        channel: ChannelNumber,
        /// The calling endpoint.
        caller: EndpointId,
        /// The called endpoint.
        callee: EndpointId,
    },
    /// Write the channel state and wake both sides.
    Close {
        /// Number of the channel.
        channel: ChannelNumber,
        /// Cause of the close.
        cause: CloseCause,
    },
    /// Notify an endpoint that a channel ends.
    Notify {
        /// The endpoint to notify.
        endpoint: EndpointId,
        /// Number of the channel.
        channel: ChannelNumber,
        /// Kind of the end.
        state: ChannelEnding,
    },
    /// Forget a channel that no live endpoint uses.
    Forget {
        /// Number of the channel.
        channel: ChannelNumber,
    },
    /// Reclaim slots of dead endpoints; call [`super::DomainTopology::release_id`] for ids that no
    /// slot contains.
    Sweep,
    /// The withdrawn instance has answered all calls and gets no more.
    Quiet {
        /// The withdrawn instance.
        instance: InstanceId,
    },
}

/// Cause of a close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseCause {
    /// No new calls.
    Withdrawn,
    /// The caller is gone or done.
    Caller,
    /// The callee is gone.
    Callee,
    /// The channel is unusable.
    Broken,
}

/// An endpoint reported about a channel of other endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the endpoint reported about a channel that is not its own")]
pub struct UnexpectedReport;
