//! What may be sent, and what is next: the two ends of a worker, without sockets.
//!
//! [`Outgoing`] is one edge's producing end, [`Merge`] all consuming ends of one worker.

mod merge;
mod outgoing;
#[cfg(test)]
mod tests;

pub use merge::{Merge, Next, OutOfOrder, Piece, Start};
pub use outgoing::{NotSent, Outgoing};
