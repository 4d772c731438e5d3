//! Error codes that end streams and connections early, from `contract/quic.md`.

use quinn::VarInt;

/// The call was cancelled (a reset, or the request to stop sending).
pub const CANCELLED: VarInt = VarInt::from_u32(1);
/// The body failed at its source.
pub const BODY_CUT: VarInt = VarInt::from_u32(2);
/// The data is not a valid call.
pub const PROTOCOL_FAULT: VarInt = VarInt::from_u32(3);
/// The call was not run: repeating it is safe.
pub const NOT_RUN: VarInt = VarInt::from_u32(4);
/// The connection is not needed any more.
pub const DONE: VarInt = VarInt::from_u32(0);
/// The peer is not admitted; the text holds the reason. Nothing on this connection was run.
pub const REFUSED: VarInt = VarInt::from_u32(5);
/// The endpoint stops: open calls end, and no new ones are accepted.
pub const STOPPING: VarInt = VarInt::from_u32(6);
/// The worker has reached its connection limit. Nothing on this connection was run.
pub const FULL: VarInt = VarInt::from_u32(7);
/// The peer is not admitted any more: open calls end. The text holds the reason.
pub const EXCLUDED: VarInt = VarInt::from_u32(8);
