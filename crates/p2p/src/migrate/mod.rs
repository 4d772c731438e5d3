//! A byte stream to a peer that begins on the relay and moves to a direct connection in mid-stream.
//!
//! Each direction moves by itself: the sender ends its frame on the relay, says there how many bytes went that way, and goes
//! on over the direct connection; the receiver reads the relay up to that byte, then the other ([`StreamSwitch`], pure). After
//! that there is no framing left, and no third part: reads and writes are those of the connection.
//!
//! The leader of the session moves first, once both sides have the connection; the follower moves when it reads that. So
//! nothing is ever sent over a connection that only one of the two believes in.

mod memory_relay;
mod relay;
mod stream;
mod stream_switch;
mod switch_message;
#[cfg(test)]
mod tests;
mod wakers;

pub use memory_relay::{MemoryRelay, memory_relays};
pub use relay::{MAX_FRAME_BYTES, RelayConnection, StreamFrame};
pub use stream::{
    CloseFuture, DirectConnection, DirectConnections, DuplexIo, MigratingStream, RelayedBytes,
    StreamPath, StreamPaths,
};
pub use stream_switch::{ReadSource, StreamSwitch, SwitchError};
pub use switch_message::{InvalidSwitchMessage, SwitchMessage};
