//! HTTP/3 (RFC 9114) for public clients: the server side, with limits that a hostile peer cannot
//! exceed.
//!
//! QUIC is quinn's and HTTP/3 the `h3` crate's. This module connects them: streams with limits of
//! their own ([`transport`]), requests and their bodies as the rest of nearpath knows them
//! ([`Http3Requests`], [`Http3RequestBody`], [`ResponseSender`]), address validation
//! ([`RetryPolicy`]), and the routing of packets to threads ([`CidRouting`]). One
//! [`Http3ServerConfig`] serves a port with a certificate; each thread has an endpoint on it.
//!
//! Calls between parts of nearpath use plain QUIC streams instead, see [`crate::quic`].

mod cid_routing;
mod pseudo_header_scan;
mod request_body;
mod request_head;
mod requests;
mod response_sender;
mod retry_policy;
mod server_config;
mod transport;
mod unread_limit;

pub use cid_routing::{BpfInstruction, CidRouting, CidRoutingState, MAX_PARTS, ProcessPart};
pub use request_body::{Http3RequestBody, RequestBodyError};
pub use request_head::MalformedHead;
pub use requests::{
    Http3ConnectionLost, Http3Requests, ReceivedRequest, RequestReadError, ResponseStopped,
    UnreadRequest,
};
pub use response_sender::{ResponseSendError, ResponseSender};
pub use retry_policy::{HandshakeCapacity, HandshakeVerdict, RetryPolicy};
pub use server_config::{Http3ConfigError, Http3ServerConfig};

/// The protocol's name in TLS (ALPN).
pub const ALPN: &[u8] = b"h3";

/// Error codes of RFC 9114 section 8.1, as QUIC has them.
pub mod error_code {
    use quinn::VarInt;

    /// No error: the connection or stream is not needed any more.
    pub const NO_ERROR: VarInt = VarInt::from_u32(0x100);
    /// The request was not processed: repeating it is safe.
    pub const REQUEST_REJECTED: VarInt = VarInt::from_u32(0x10b);
    /// The response is incomplete.
    pub const REQUEST_CANCELLED: VarInt = VarInt::from_u32(0x10c);
    /// The peer causes excessive load.
    pub const EXCESSIVE_LOAD: VarInt = VarInt::from_u32(0x107);
}
