//! The words that messages are made of.

use serde::{Deserialize, Serialize};

/// How a party wants to be woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bell {
    /// Futex on the desk: a thread that does nothing else.
    Futex,
    /// An eventfd that does not block: an event loop.
    Eventfd,
    /// Not at all.
    None,
}

/// How descriptors go from party to party in a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Rings in shared memory; parties sleep at their desks.
    #[default]
    Ring,
    /// The kernel carries them from socket to socket.
    Sockmap,
    /// Rings; parties never sleep.
    Poll,
    /// One that this version does not know.
    #[serde(other)]
    Unknown,
}

impl Mode {
    /// For leaving out what goes without saying.
    pub(super) fn is_ring(&self) -> bool {
        *self == Self::Ring
    }
}

/// Who can write where in a domain's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// Everybody in one pool.
    #[default]
    Shared,
    /// Every party in a pool of its own, which the others can read.
    Strict,
    /// One that this version does not know.
    #[serde(other)]
    Unknown,
}

impl Isolation {
    /// For leaving out what goes without saying.
    pub(super) fn is_shared(&self) -> bool {
        *self == Self::Shared
    }
}

/// What became of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// No new calls; finish what is open.
    Withdrawn,
    /// The other side is no more.
    Dead,
}

/// What a party is on a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It calls.
    Caller,
    /// It is called.
    Callee,
}
