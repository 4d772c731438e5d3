//! Messages between nodes: lines of a state stream, pings and their responses. Pure.

mod frame;
mod incarnation;
mod line_buffer;
mod ping;

pub use frame::{
    FrameFault, MAX_FUNCTIONS, MAX_LINE_BYTES, MAX_LINE_FUNCTIONS, MAX_VERSION_BYTES, NodeHello,
    PROTOCOL, StateChange, StateFrame, StatePart,
};
pub use incarnation::{InvalidIncarnation, NodeIncarnation};
pub use line_buffer::{LineBuffer, LineTooLong};
pub use ping::{AppliedReport, MAX_PING_BYTES, PingResponse};

/// Path of a node's state stream.
pub const STATE_PATH: &str = "/node/v1/state";
/// Path of a node's ping.
pub const PING_PATH: &str = "/node/v1/ping";
/// Content type of a state stream.
pub const STATE_CONTENT_TYPE: &str = "application/x-ndjson";
