//! The gateway: listens, routes, admits, delivers, and records.
//!
//! A request passes the folders in this order; `pipeline` shows its path in one file. Each
//! serving thread has its own connections, timers and `context`, which never leave it. Threads
//! share the `function::RoutingTable`, which [`Gateway::publish`] replaces atomically, and
//! counters. Imports follow the order of folders in `layers.toml`.
#![forbid(unsafe_code)]

mod admit;
mod call;
mod context;
mod control;
mod deliver;
mod error_response;
mod event_loop;
mod fast_path;
pub mod fixed;
mod function;
#[doc(hidden)]
pub mod fuzz;
mod gateway;
pub mod invoke;
mod listen;
mod pipeline;
pub mod quota;
mod record;
mod remote_events;
mod request;
pub mod route;
mod settings;
mod spool;
mod transport;

pub use control::{GatewayControl, NoControl, NodeResponse, UpgradeTask, UpgradedStream};
pub use gateway::{Gateway, ServingThreads};
pub use listen::{GatewayListener, Http3Listener, ListenerTls, NodeQuicListener};
pub use request::ListenerZone;
pub use settings::GatewaySettings;

/// Component name of the gateway in errors.
pub const COMPONENT: &str = "gateway";
