//! The routing state that the node hands to the data plane. Swapped as a whole; no request waits
//! for the control plane.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::addr::InstanceAddr;
use crate::function_map::FunctionMap;
use crate::function_server::FunctionServer;
use crate::name::{FunctionId, InstanceId};
use crate::node::{PeerNode, RemoteInstances};
use crate::policy::{CallTransport, FunctionPolicy};
use crate::virtual_address::VirtualAddress;

/// State of an instance for the data plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceState {
    /// Exists, but its watchdog or handler is not ready: may call, but is not called.
    Starting,
    /// May be called.
    Ready,
    /// Withdrawn: finishes open calls and may still call, but gets no new ones.
    Draining,
    /// Withdrawn, and stopped as soon as it has no open calls; a wake-up lets it go on.
    Frozen,
}

/// The machine of an instance, seen from the node whose snapshot names the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InstanceLocality {
    /// The machine of that node.
    SameNode,
    /// Another machine.
    OtherNode,
}

/// Instance as the data plane sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceRoute {
    /// Stable for its life, never used again by another one.
    pub id: InstanceId,
    /// Address of its watchdog, from which its own calls come.
    pub addr: InstanceAddr,
    /// Machine of the instance, known to the node that publishes the snapshot.
    pub locality: InstanceLocality,
    /// State for the data plane.
    pub state: InstanceState,
    /// Name for calls over QUIC at the same address; none: HTTP only.
    pub quic: Option<Arc<str>>,
    /// Transport that its callers must use: the function's setting when it was started, which an
    /// update does not change.
    pub transport: CallTransport,
    /// Its own HTTP server, if callers on its machine may connect to that without the watchdog.
    pub server: Option<Arc<FunctionServer>>,
}

/// Function that can be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionRoute {
    /// Full name.
    pub id: FunctionId,
    /// Virtual address on this node, if it has one.
    pub address: Option<VirtualAddress>,
    /// Limits, timeouts and permitted edges.
    pub policy: Arc<FunctionPolicy>,
    /// Replicas wanted; 0 means asleep: a request for it wakes it.
    pub replicas: u32,
    /// All its instances on this node, whatever their state.
    pub instances: Vec<InstanceRoute>,
    /// The function may have instances on this node. Calls that come from other nodes go to these
    /// alone.
    pub runs_here: bool,
    /// Other nodes with instances, in the order of their names.
    pub remotes: Vec<RemoteInstances>,
    /// Failure for which no instance is ready when one should be.
    pub start_failure: Option<StartFailure>,
}

/// Failure of a function's instances, as its callers may read it.
///
/// Output of the tenant is not part of it: a traceback may contain secrets, and callers may be
/// anonymous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFailure {
    /// Cause of the last failure.
    pub cause: StartFailureCause,
    /// Instance that failed last, whose log has the details; `None`: none existed.
    pub instance: Option<InstanceId>,
    /// Maximum time until the next start, if so many starts failed that callers need not wait.
    pub retry_after: Option<Duration>,
}

/// Cause for which instances do not become or stay ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartFailureCause {
    /// The process ended before it was ready.
    Exited,
    /// The process ended soon after it was ready.
    Died,
    /// The kernel killed a process for lack of memory.
    OutOfMemory,
    /// Not ready within `start_timeout`.
    TooSlow,
    /// The folder or a setting must change first.
    NotDeployable,
    /// The node could not start a process.
    NodeRefused,
}

impl fmt::Display for StartFailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exited => "its process ended before it was ready",
            Self::Died => "its process ended soon after it was ready",
            Self::OutOfMemory => "it needed more memory than it may use",
            Self::TooSlow => "it was not ready within its start timeout",
            Self::NotDeployable => "its deployment cannot run",
            Self::NodeRefused => "the node could not start it",
        })
    }
}

/// All functions that can be called on this node, at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoutingSnapshot {
    /// Grows by one with each change.
    pub version: u64,
    /// Entry per function.
    pub functions: FunctionMap<FunctionRoute>,
    /// Other nodes that are reachable, in the order of their names.
    pub nodes: Arc<[Arc<PeerNode>]>,
}

impl FromIterator<FunctionRoute> for FunctionMap<FunctionRoute> {
    fn from_iter<I: IntoIterator<Item = FunctionRoute>>(all: I) -> Self {
        all.into_iter().map(|one| (one.id.clone(), one)).collect()
    }
}
