//! Functions, shared by all threads: instances, limits and counters.
//!
//! A snapshot adds a [`FunctionEntry`] to the [`RoutingTable`] and replaces its [`ActiveRoute`].
//! State that outlives a snapshot is separate: the [`AdmissionGate`], the counters, and the state
//! of each instance.

mod dial_target;
mod edge_tally;
mod endpoint;
mod entry;
mod gate;
mod node_targets;
mod remote_paths;
mod routing_table;
mod tally;
mod udp_reachability;
mod wake_throttle;

pub(crate) use dial_target::DialTarget;
pub(crate) use edge_tally::{EdgeCounters, EndedCall};
pub(crate) use endpoint::{EndpointId, FunctionEndpoint};
pub(crate) use entry::{ActiveRoute, FunctionEntry};
pub(crate) use gate::{AdmissionGate, AdmissionPermit, GateEntry, GateRefusal, GateWaiter};
pub use remote_paths::RemotePath;
pub(crate) use routing_table::RoutingTable;
pub(crate) use tally::{
    BUCKET_BOUNDS_US, CallOrigin, LatencyHistogram, RefusalCounts, RequestTally, StatusCounts,
};
pub(crate) use udp_reachability::monotonic_millis;
pub(crate) use wake_throttle::WAKE_INTERVAL;
