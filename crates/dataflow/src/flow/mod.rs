//! Flow control and input order of a worker, without sockets.
//!
//! [`SendWindow`] is the producing end of one edge, [`InputMerge`] all consuming ends of one
//! worker.

mod input_merge;
mod send_window;
#[cfg(test)]
mod tests;

pub use input_merge::{InputMerge, InputStart, MergeStep, StreamItem, StreamOrderError};
pub use send_window::{SendWindow, UnexpectedAck};
