//! Handshake messages: hello, welcome or refusal, and a strict endpoint's own pool.

use nearpath_types::{FunctionId, InstanceId};
use serde::{Deserialize, Serialize};

use super::{DeliveryMode, DomainIsolation, WakeupMode};

/// First message of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloMessage {
    /// Protocol version: [`super::PROTOCOL_VERSION`].
    pub version: u32,
    /// The endpoint serves calls for its function.
    #[serde(default)]
    pub serves: bool,
    /// The endpoint serves calls only while no other endpoint of its instance does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub substitute: bool,
    /// The endpoint never calls: it gets no channels to callees.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub serves_only: bool,
    /// Wakeup mechanism, unless the delivery mode determines it.
    pub wakeup: WakeupMode,
    /// Supported delivery modes; empty: only [`DeliveryMode::Ring`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delivery: Vec<DeliveryMode>,
    /// Supported isolation modes; empty: only [`DomainIsolation::Shared`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub isolation: Vec<DomainIsolation>,
}

/// Reply of the node to [`HelloMessage`]. Descriptors: pool (not in a strict domain), wakeup cell,
/// then the eventfd ([`super::WakeupMode::Eventfd`]) or the endpoint's socket
/// ([`DeliveryMode::Sockmap`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WelcomeMessage {
    /// Name of the domain, for display.
    pub domain: String,
    /// Id of the endpoint.
    pub endpoint: u16,
    /// Function of the endpoint; none for the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionId>,
    /// Instance of the endpoint; none for the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// Bytes of the pool's region; in a strict domain, of the pool that the endpoint creates.
    pub pool: u64,
    /// Maximum bytes of slots that the endpoint may hold.
    pub max_held_bytes: u64,
    /// Descriptors per ring, unless `peer` overrides it.
    pub capacity: u32,
    /// Delivery mode of descriptors.
    #[serde(default, skip_serializing_if = "DeliveryMode::is_ring")]
    pub delivery: DeliveryMode,
    /// Isolation of the domain.
    #[serde(default, skip_serializing_if = "DomainIsolation::is_shared")]
    pub isolation: DomainIsolation,
    /// In a strict domain: size and count of each class of the endpoint's own pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<[u32; 2]>,
}

/// A strict endpoint's own pool. Descriptor: its region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnPoolMessage {
    /// Bytes of the region.
    pub bytes: u64,
}

/// Reason why the node refused the endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedMessage {
    /// Text for display.
    pub reason: String,
}
