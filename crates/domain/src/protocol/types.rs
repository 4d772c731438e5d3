//! Enumerations of protocol messages.

use serde::{Deserialize, Serialize};

/// Wakeup mechanism that an endpoint requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WakeupMode {
    /// Futex on the wakeup cell: for a dedicated thread.
    Futex,
    /// Non-blocking eventfd: for an event loop.
    Eventfd,
    /// None: the endpoint polls.
    None,
}

/// Delivery of descriptors between endpoints of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryMode {
    /// Rings in shared memory; endpoints sleep in their wakeup cells.
    #[default]
    Ring,
    /// The kernel carries descriptors from socket to socket.
    Sockmap,
    /// Rings; endpoints never sleep.
    Poll,
    /// A mode that this version does not know.
    #[serde(other)]
    Unknown,
}

impl DeliveryMode {
    /// Tells serde to omit the default.
    pub(super) fn is_ring(&self) -> bool {
        *self == Self::Ring
    }
}

/// Isolation of the memory in a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DomainIsolation {
    /// All endpoints share one pool.
    #[default]
    Shared,
    /// Each endpoint has its own pool, which others can only read.
    Strict,
    /// An isolation that this version does not know.
    #[serde(other)]
    Unknown,
}

impl DomainIsolation {
    /// Tells serde to omit the default.
    pub(super) fn is_shared(&self) -> bool {
        *self == Self::Shared
    }
}

/// Kind of a channel's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChannelEnding {
    /// No new calls; finish open ones.
    Withdrawn,
    /// The other side is dead.
    Dead,
}

/// Role of an endpoint on a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChannelRole {
    /// The endpoint calls.
    Caller,
    /// The endpoint is called.
    Callee,
}
