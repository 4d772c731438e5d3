//! What may be sent, and what is next: the two ends of a worker, without sockets.
//!
//! [`SendWindow`] is one edge's producing end, [`InputMerge`] all consuming ends of one worker.

mod input_merge;
mod send_window;
#[cfg(test)]
mod tests;

pub use input_merge::{InputMerge, InputStart, MergeStep, StreamItem, StreamOrderError};
pub use send_window::{SendWindow, UnexpectedAck};
