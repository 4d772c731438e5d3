//! Connections to functions that run on other nodes only, as streams of bytes between two nodes.
//!
//! The caller's node opens a stream with a [`StreamHook`], the called node accepts it with a
//! [`StreamAcceptor`]. Each has a share for the other's callers. [`StreamCounts`] are the metrics of both.

mod acceptor;
mod hook;
mod permission;
mod stream_counts;

pub use acceptor::AcceptedStream;
pub(crate) use acceptor::StreamAcceptor;
pub use hook::{ByteStream, RemoteStream, StreamFailure, StreamHook};
pub(crate) use permission::COMPONENT;
pub(super) use stream_counts::StreamDirection;
pub(crate) use stream_counts::{StreamCounts, register_collector};
