//! Flow control and input order of a worker, without sockets.
//!
//! [`BatchGroup`] collects items into batches. [`SendWindow`] is the producing end of one edge,
//! [`InputMerge`] all consuming ends of one worker.

mod batch_group;
mod input_merge;
mod send_window;
#[cfg(test)]
mod tests;

pub use batch_group::{BatchGroup, BatchState};
pub use input_merge::{InputMerge, InputStart, MergeStep, StreamItem, StreamOrderError};
pub use send_window::{SendWindow, UnexpectedAck};
