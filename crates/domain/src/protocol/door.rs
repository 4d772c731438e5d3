//! What is said at the door: hello, welcome or refusal, and a strict party's own pool.

use nearpath_types::{FunctionId, InstanceId};
use serde::{Deserialize, Serialize};

use super::{Bell, Isolation, Mode};

/// The first word of a party.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// It takes calls for its function.
    #[serde(default)]
    pub serves: bool,
    /// It takes calls only while no other party of its instance does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stands_in: bool,
    /// How it is woken, unless the domain's mode knows better.
    pub bell: Bell,
    /// The modes that it can do; none: only [`Mode::Ring`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delivery: Vec<Mode>,
    /// The kinds of domain that it can be a party of; none: only [`Isolation::Shared`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub isolation: Vec<Isolation>,
}

/// The node's answer to [`Hello`]. Descriptors: pool (not in a strict domain), desk, then the event (of an `eventfd` bell) or the
/// party's socket ([`Mode::Sockmap`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Name of the domain, for people.
    pub domain: String,
    /// The party's number.
    pub party: u16,
    /// Its function; none for the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionId>,
    /// Its instance; none for the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// Bytes of the pool's region; in a strict domain, of the one that the party makes.
    pub pool: u64,
    /// Bytes of slots that it may hold.
    pub bound: u64,
    /// Descriptors in each ring of its channels, unless `peer` says otherwise.
    pub capacity: u32,
    /// How descriptors go.
    #[serde(default, skip_serializing_if = "Mode::is_ring")]
    pub delivery: Mode,
    /// Who can write where.
    #[serde(default, skip_serializing_if = "Isolation::is_shared")]
    pub isolation: Isolation,
    /// In a strict domain: size and count of each class of the party's own pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<[u32; 2]>,
}

/// A strict party's own pool. Descriptor: its region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnPool {
    /// Bytes of the region.
    pub bytes: u64,
}

/// Why a party is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// For people.
    pub why: String,
}
