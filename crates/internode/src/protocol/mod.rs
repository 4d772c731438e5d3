//! Messages between nodes: lines of a state stream, pings and their responses. Pure.

mod direct;
mod frame;
mod incarnation;
mod line_buffer;
mod ping;
mod query_fields;
mod stream_request;

pub use direct::{DirectFault, MAX_DIRECT_INSTANCES, encode_direct, parse_direct};
pub use frame::{
    FrameFault, MAX_FUNCTIONS, MAX_LINE_BYTES, MAX_LINE_FUNCTIONS, MAX_VERSION_BYTES, NodeHello,
    PROTOCOL, StateChange, StateFrame, StatePart,
};
pub use incarnation::{InvalidIncarnation, NodeIncarnation};
pub use line_buffer::{LineBuffer, LineTooLong};
pub use ping::{AppliedReport, MAX_PING_BYTES, PingResponse};
pub use stream_request::{STREAM_PROTOCOL, parse_stream_query, stream_path};

/// Path of a node's state stream.
pub const STATE_PATH: &str = "/node/v1/state";
/// Path of a node's ping.
pub const PING_PATH: &str = "/node/v1/ping";
/// Path of a node's stream of directly callable instances.
pub const DIRECT_PATH: &str = "/node/v1/direct";
/// Path of streams of bytes to a node's functions.
pub const STREAM_PATH: &str = "/node/v1/stream";
/// Content type of a state stream.
pub const STATE_CONTENT_TYPE: &str = "application/x-ndjson";
