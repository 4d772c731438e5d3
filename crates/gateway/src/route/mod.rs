//! Which function a request is for, and whether its caller may call it.
//!
//! [`parse`] reads the path; [`Table::find`] finds the function in the last snapshot that was published; [`edge`] holds
//! an inner caller against the edges that its chain declares.

mod edge;
mod endpoint;
mod function;
mod reach;
mod table;
mod target;

pub(crate) use edge::check as check_edge;
pub(crate) use endpoint::Endpoint;
pub(crate) use function::{Function, Route};
pub(crate) use reach::millis;
pub(crate) use table::Table;
pub use target::{BadName, Target, parse};
