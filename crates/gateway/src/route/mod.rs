//! Routing: the function of a request, and the permission to call it.
//!
//! [`parse_path`] parses the path, and `resolve` finds the function in the last snapshot.
//! `check_edge` compares an instance's call with the edges that its chain declares, and `check_event` an
//! event with the topics of both functions.

mod permission;
mod resolve;
mod target;

pub(crate) use permission::{check_edge, check_event, check_node_caller};
pub(crate) use resolve::{RouteDestination, UnroutableRequest, resolve};
pub use target::{InvalidFunctionPath, PathTarget, parse_path};
