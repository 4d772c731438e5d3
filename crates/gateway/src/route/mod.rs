//! Routing: the function that a request is for, and whether its caller may call it.
//!
//! [`parse`] reads the path, and [`resolve`] finds the function in the last snapshot. [`check_edge`] compares an instance's call with
//! the edges that its chain declares.

mod permission;
mod resolve;
mod target;

pub(crate) use permission::check as check_edge;
pub(crate) use resolve::{Destination, Unroutable, resolve};
pub use target::{BadName, Target, parse};
