//! The numbers with which streams and connections are ended before their time: `contract/quic.md`.

use quinn::VarInt;

/// Nobody waits for this call any more (a stream's reset, or the request to stop sending).
pub const CANCELLED: VarInt = VarInt::from_u32(1);
/// The body broke off at its source.
pub const BODY_CUT: VarInt = VarInt::from_u32(2);
/// What came is no call.
pub const PROTOCOL_FAULT: VarInt = VarInt::from_u32(3);
/// The call was not looked at: making it again is safe.
pub const NOT_RUN: VarInt = VarInt::from_u32(4);
/// The connection is not needed any more.
pub const DONE: VarInt = VarInt::from_u32(0);
/// The peer is not admitted; the reason is in the text. Nothing that came on this connection was looked at.
pub const REFUSED: VarInt = VarInt::from_u32(5);
/// The end is stopping: calls that are open end, no new ones are taken.
pub const STOPPING: VarInt = VarInt::from_u32(6);
/// The worker has as many connections as it takes. Nothing that came on this one was looked at.
pub const FULL: VarInt = VarInt::from_u32(7);
/// The peer is not admitted any more: calls that are open end. The reason is in the text.
pub const EXCLUDED: VarInt = VarInt::from_u32(8);
