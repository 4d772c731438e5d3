//! Messages about channels: peers that come and go, broken channels, and channels that cannot be
//! created.

use nearpath_types::{FunctionId, InstanceId};
use serde::{Deserialize, Serialize};

use super::{ChannelEnding, ChannelRole};

/// A new peer. Descriptors: channel, the peer's pool (in a strict domain), its wakeup cell, its
/// eventfd (if any).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerMessage {
    /// Number of the channel, never reused in a domain.
    pub channel: u32,
    /// Role of the receiver of this message.
    pub side: ChannelRole,
    /// Endpoint id of the peer.
    pub endpoint: u16,
    /// Function of the peer; none for the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionId>,
    /// Instance of the peer; none for the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// Descriptors per ring.
    pub capacity: u32,
    /// Bytes of the peer's pool, in a strict domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<u64>,
    /// The peer is its instance's watchdog, so its responses may be errors of the platform.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub watchdog: bool,
    /// Terms of the edge.
    #[serde(flatten)]
    pub terms: EdgeTerms,
}

/// Terms of an edge, besides calls by the callee's own name. All are optional.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeTerms {
    /// Aliases by which the caller calls the callee.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<FunctionId>,
    /// Topic filters of events that the callee wants from the caller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topics: Vec<String>,
    /// Only events are allowed: a call breaks the channel.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub events_only: bool,
}

/// A channel ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelGone {
    /// Number of the channel.
    pub channel: u32,
    /// Kind of the end.
    pub state: ChannelEnding,
}

/// Reply to [`ChannelGone`]: the endpoint no longer uses the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelDrained {
    /// Number of the channel.
    pub channel: u32,
}

/// A channel is unusable: an end violated the protocol, or could not map it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelBroken {
    /// Number of the channel.
    pub channel: u32,
}

/// A declared channel cannot be created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelFailed {
    /// Function that the endpoint would call.
    pub function: FunctionId,
    /// Resource that the node lacks.
    pub missing: ChannelError,
}

/// Resource that a node can lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChannelError {
    /// File descriptors: EMFILE, ENFILE.
    Descriptors,
    /// Memory: ENOMEM, ENOSPC.
    Memory,
    /// Another cause; the node's log has it.
    #[serde(other)]
    Other,
}

impl ChannelError {
    /// Derives the resource from the error of a failed creation.
    pub fn from_io_error(error: &std::io::Error) -> Self {
        match error
            .raw_os_error()
            .map(rustix::io::Errno::from_raw_os_error)
        {
            Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => Self::Descriptors,
            Some(rustix::io::Errno::NOMEM | rustix::io::Errno::NOSPC) => Self::Memory,
            _ => Self::Other,
        }
    }
}

impl std::fmt::Display for ChannelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Descriptors => {
                "the node has no file descriptor left: raise its limit (LimitNOFILE, ulimit -n)"
            }
            Self::Memory => "the node has no memory left for it",
            Self::Other => "see the node's log",
        })
    }
}
