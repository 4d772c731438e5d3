//! Warm sockets for short-lived functions (path `pool`): a function opens a connection to a database or an API outside and is given one that the node
//! has kept ready (Hunhoff and Rozner, *Network Connection Optimization for Serverless Workloads*).
//!
//! [`exit`] is the way out of an instance: the only one there is, hence the policy. [`shortcut`] spares a plain TCP destination that way: it puts a warm
//! socket in the place of the function's own. [`stock`] decides what is kept open, without socket or clock; [`keeper`] does it. [`adapters`] speak the
//! protocols whose used connections can be proved quiet, so that they serve again. What is known of the paths is in [`window`].
//! [`Pool`] is the handle that a node has.
#![forbid(unsafe_code)]

pub mod adapters;
pub mod destination;
pub mod exit;
pub mod keeper;
mod keys;
pub mod ledger;
pub mod places;
mod pool;
pub mod shortcut;
pub mod stock;
pub mod tls;
pub mod unwritten;
pub mod window;

pub use pool::{Admission, Admitted, Pool, Tell};
