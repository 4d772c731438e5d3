//! What is said of channels: peers that come and go, what broke, and what could not be made.

use nearpath_types::{FunctionId, InstanceId};
use serde::{Deserialize, Serialize};

use super::{End, Role};

/// An edge. Descriptors: channel, the peer's pool (in a strict domain), its desk, its event (if it has one).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// The channel's number: never given twice in a domain.
    pub channel: u32,
    /// What the receiver of this message is.
    pub side: Role,
    /// The peer's number.
    pub party: u16,
    /// The peer's function; none for the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionId>,
    /// The peer's instance; none for the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// Descriptors in each ring.
    pub capacity: u32,
    /// Bytes of the peer's pool, in a strict domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<u64>,
    /// What the edge is good for.
    #[serde(flatten)]
    pub terms: Terms,
}

/// What an edge is good for, beside calling the callee by its own name. All of it may be left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Other names by which the caller calls the callee.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<FunctionId>,
    /// Filters of the topics whose events the callee wants from the caller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topics: Vec<String>,
    /// Events alone may be sent: a call breaks the channel.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub events_only: bool,
}

/// A channel comes to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gone {
    /// Which.
    pub channel: u32,
    /// How.
    pub state: End,
}

/// The answer to [`Gone`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drained {
    /// Which.
    pub channel: u32,
}

/// A channel is of no use: one of its ends broke the rules, or could not map what it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// Which.
    pub channel: u32,
}

/// There should be a channel to a function, and cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Whom the party would call.
    pub function: FunctionId,
    /// What the node has too little of.
    pub lacks: Lack,
}

/// What a node can have too little of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lack {
    /// File descriptors: EMFILE, ENFILE.
    Descriptors,
    /// Memory: ENOMEM, ENOSPC.
    Memory,
    /// Something else; the node's log says what.
    #[serde(other)]
    Other,
}

impl Lack {
    /// By the error that making something ended with.
    pub fn of(error: &std::io::Error) -> Self {
        match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
            Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => Self::Descriptors,
            Some(rustix::io::Errno::NOMEM | rustix::io::Errno::NOSPC) => Self::Memory,
            _ => Self::Other,
        }
    }
}

impl std::fmt::Display for Lack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Descriptors => "the node has no file descriptor left: raise its limit (LimitNOFILE, ulimit -n)",
            Self::Memory => "the node has no memory left for it",
            Self::Other => "the node's log says why",
        })
    }
}
