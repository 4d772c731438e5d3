//! The routing state that the node hands to the data plane. Swapped as a whole; no request waits for the control plane.

use std::sync::Arc;

use crate::addr::InstanceAddr;
use crate::name::{FunctionId, InstanceId};
use crate::policy::{CallTransport, FunctionPolicy};

/// What may be done with an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceState {
    /// It exists, its watchdog or handler is not ready: it may call, but is not called.
    Starting,
    /// It may be called.
    Ready,
    /// Withdrawn: it finishes what it has and may still call, but gets nothing new.
    Draining,
}

/// The machine of an instance, seen from the node whose snapshot names the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InstanceLocality {
    /// The machine of that node.
    SameNode,
    /// Another machine.
    OtherNode,
}

/// One instance as the data plane sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceRoute {
    /// Its id: stable for its life, never used again by another one.
    pub id: InstanceId,
    /// Where its watchdog listens, and the address from which its own calls come.
    pub addr: InstanceAddr,
    /// On which machine it runs: the node that publishes the snapshot knows.
    pub locality: InstanceLocality,
    /// What may be done with it.
    pub state: InstanceState,
    /// The name by which it is called over QUIC, at the same address; none: over HTTP only.
    pub quic: Option<Arc<str>>,
    /// What its callers have to speak: what its function asked for when it was started, which an update does not change.
    pub transport: CallTransport,
}

/// One function that can be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionRoute {
    /// Who it is.
    pub id: FunctionId,
    /// Limits, timeouts and permitted edges.
    pub policy: Arc<FunctionPolicy>,
    /// Replicas wanted; 0 means asleep: a request for it wakes it.
    pub replicas: u32,
    /// All its instances, whatever their state.
    pub instances: Vec<InstanceRoute>,
    /// Why no instance is ready, when one should be (a handler that crashes at start), for the caller's error text.
    pub trouble: Option<Arc<str>>,
}

/// Everything that can be called on this node, at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoutingSnapshot {
    /// Grows by one with each change.
    pub version: u64,
    /// One entry a function.
    pub functions: Vec<FunctionRoute>,
}
