//! The gateway: it listens, routes, admits, delivers, and records.
//!
//! A request passes the folders in this order; [`pipeline`] shows its path in one file. Each serving thread has connections, timers
//! and a [`context`] of its own, which never leave it. Threads share the [`function::RoutingTable`], replaced as a whole by
//! [`Gateway::publish`], and counters. Imports go down the order of folders in `layers.toml` only.
#![forbid(unsafe_code)]

mod admit;
mod call;
mod context;
mod control;
mod deliver;
mod error_response;
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
mod request;
pub mod route;
mod settings;
mod transport;

pub use control::{GatewayControl, NoControl};
pub use gateway::{Gateway, ServingThreads};
pub use listen::{GatewayListener, Http3Listener};
pub use request::ListenerZone;
pub use settings::GatewaySettings;

/// The gateway's name in errors.
pub const COMPONENT: &str = "gateway";
