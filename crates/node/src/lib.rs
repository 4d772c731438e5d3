//! The agent of a machine: it runs the instances that the controller wants, and publishes them to
//! the data plane.
//!
//! [`Node`] is the handle. One task owns all state (`agent`): it asks the pure function
//! [`reconcile::plan`], publishes a snapshot, and acts. Each instance has a task
//! ([`instance::lifecycle`]), from the copy of its folder ([`artifact`]) over the launch
//! ([`machine`]) to its last log line ([`logs`]).
//!
//! Instances stop in a fixed order, so that no request is lost:
//!
//! 1. The snapshot shows `Draining`.
//! 2. All gateway threads use that snapshot, and no request is on its way to the instance
//!    ([`config::SettleHook`]).
//! 3. The watchdog gets SIGTERM and finishes open requests.
//! 4. At the timeout it gets SIGKILL.
//! 5. Its cgroup, folders, address and user id are released.
#![forbid(unsafe_code)]

mod agent;
pub mod allocators;
pub mod artifact;
mod chains;
pub mod config;
mod connection_totals;
mod direct_stats;
mod domain_stats;
mod domains;
mod edge_metrics;
mod edges;
mod forwarding;
mod gateway_threads;
mod identity;
pub mod instance;
pub mod logs;
mod loopback_metrics;
pub mod machine;
mod metrics;
mod node;
mod node_id;
mod pages;
mod paths;
pub mod placement;
mod pool_metrics;
pub mod reconcile;
mod remote_paths;
mod remote_subscribers;
pub mod run_lock;
mod sockmap_routers;
mod status;
mod totals;
pub mod virtual_switch;

pub use artifact::ArtifactHold;
pub use config::{
    CallCounter, DirectPorts, EdgeCallReader, NodeConfig, NodeError, SettleHook, WakeHook,
};
pub use connection_totals::ConnectionTotals;
pub use identity::{
    HandshakeHalf, HandshakeStep, IdentityIssuer, IdentityService, InstanceIdentity,
};
pub use nearpath_egress::addresses::EGRESS_PROXY_EIP;
pub use node::Node;
pub use node_id::node_id;
pub use run_lock::RunLock;
pub use virtual_switch::remote::{AcceptedStream, RemoteStream, StreamHook};
