//! Where requests come in: listen, route, admit, deliver, record.
//!
//! A request walks through the rooms in this order; [`path`] shows the walk in one function. Each serving thread is a world
//! of its own ([`lane`]): its connections, those to instances and its timers never cross to another thread. What threads
//! share is the routing [`route::Table`], swapped as a whole by [`Gateway::publish`], and counters.
#![forbid(unsafe_code)]

pub mod adapt;
mod admit;
mod call;
mod deliver;
pub mod fixed;
#[doc(hidden)]
pub mod fuzz;
mod gateway;
mod lane;
mod listen;
mod path;
pub mod quota;
mod record;
mod refusal;
pub mod route;
mod settings;

pub(crate) use gateway::Shared;
pub use gateway::{Control, Gateway, Http3, Listener, NoControl, Serving, Zone};
pub use settings::Settings;

/// How the gateway names itself in errors.
pub const COMPONENT: &str = "gateway";
