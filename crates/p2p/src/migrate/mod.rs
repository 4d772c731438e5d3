//! Byte stream to a peer that begins on the relay and migrates to a direct connection in
//! mid-stream.
//!
//! Each direction migrates by itself. The sender states on the relay how many bytes went there, and
//! continues on the direct connection. The receiver reads the relay to that byte, then the
//! connection ([`StreamSwitch`], pure). Afterwards there is no framing: reads and writes are those
//! of the connection.
//!
//! The leader of the session moves first, once both sides have the connection; the follower moves
//! when it reads that. Nothing is therefore sent over a connection that only one side has selected
//! (decision 35).

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
