//! Shared types: ids, addresses by role, deployments, the data plane's snapshot, and reasons for
//! refusals.
//!
//! Nothing here does I/O, reads a clock or owns a task; every other crate builds on it.
#![forbid(unsafe_code)]

pub mod addr;
mod autoscaling_status;
pub mod chain_status;
pub mod desired;
pub mod direct;
pub mod duration;
pub mod egress;
pub mod exposition;
pub mod frames;
pub mod function;
pub mod function_map;
mod function_server;
mod grpc;
pub mod head;
mod inner_listener;
pub mod instance_label;
mod instance_status;
pub mod log_limiter;
pub mod missing_nodes;
pub mod name;
pub mod node;
mod node_log;
pub mod node_status;
mod node_stream;
pub mod platform_field;
pub mod policy;
pub mod pool_status;
pub mod quantity;
pub mod reason;
pub mod similar;
pub mod snapshot;
pub mod source_network;
pub mod spiffe;
pub mod status;
pub mod status_query;
mod status_row;
pub mod topic;
mod virtual_address;

pub use addr::{Eip, InstanceAddr};
pub use autoscaling_status::AutoscalingStatus;
pub use desired::{DesiredFunction, DesiredState, Revision};
pub use egress::EgressSpec;
pub use function::{FunctionSpec, InstanceResources};
pub use function_map::{FunctionChange, FunctionMap};
pub use function_server::{FunctionServer, InstanceNetwork};
pub use inner_listener::InnerListener;
pub use missing_nodes::MissingNode;
pub use name::{FunctionId, FunctionName, InstanceId, InvalidName, Namespace};
pub use node::{FunctionLoad, InvalidNodeName, NodeAddresses, NodeName, PeerNode, RemoteInstances};
pub use node_log::NodeLogLine;
pub use node_status::{NodeFunction, NodeState, NodeStatus, SourceReport};
pub use node_stream::NodeStreamRequest;
pub use policy::FunctionPolicy;
pub use reason::{PlatformError, Reason};
pub use snapshot::{
    FunctionRoute, InstanceLocality, InstanceRoute, InstanceState, RoutingSnapshot, StartFailure,
    StartFailureCause,
};
pub use source_network::SourceNetwork;
pub use spiffe::SpiffeId;
pub use status::{
    FunctionStatus, LogLine, LogQuery, ObservedFunction, ObservedInstance, StartPhase,
};
pub use status_query::{StatusQuery, StatusReport, StatusSource};
pub use status_row::StatusRow;
pub use virtual_address::VirtualAddress;
