//! The agent on a machine: it runs what the controller wants, and tells the data plane what can be called.
//!
//! [`Node`] is the handle. Behind it one task owns all state (`agent`): it asks the pure [`reconcile::plan`] what to do
//! next, publishes a snapshot, and acts. Each instance has a task of its own ([`instance::life`]) that walks it from its
//! folder's copy ([`artifact`]) over the launch ([`machine`]) to its last log line ([`logs`]).
//!
//! An instance is stopped in a fixed order, so that no request is lost: the snapshot says `Draining`; the gateway's
//! threads have taken that snapshot ([`config::Settle`]); SIGTERM to its watchdog, which finishes what it has; SIGKILL
//! at the limit; its cgroup, folders, address and user id are given back.
#![forbid(unsafe_code)]

mod agent;
pub mod artifact;
mod books;
pub mod config;
mod direct;
mod domains;
mod edge_metrics;
mod edges;
mod exchanges;
mod forwarding;
mod identities;
mod identity;
pub mod ids;
pub mod instance;
pub mod logs;
pub mod machine;
mod metrics;
mod node;
mod pages;
mod paths;
pub mod placement;
mod pool_metrics;
pub mod reconcile;
pub mod run;
mod sums;

pub use config::{Config, NodeError, Settle};
pub use identities::{Answerer, Identities, Identity, Issuer, Step};
pub use identity::node_id;
pub use nearpath_pool::places::EXIT;
pub use node::Node;
pub use run::Run;
