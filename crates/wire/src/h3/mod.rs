//! HTTP/3 (RFC 9114) for everybody: the server's end, with limits that a hostile peer cannot stretch.
//!
//! QUIC is quinn's and HTTP/3 the `h3` crate's. What is here lies between and around them: the streams with limits of their own
//! ([`transport`]), requests and their bodies as the rest of nearpath knows them ([`Http3Requests`], [`Incoming`], [`ResponseSender`]), whom to make
//! prove its address ([`RetryPolicy`]), and which thread a packet belongs to ([`CidRouting`]). One [`Site`] is a port with a certificate; each
//! thread has an endpoint of its own on it.
//!
//! Between our own parts calls go on plain streams instead, see [`crate::quic`].

mod cid_routing;
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
pub use retry_policy::{HandshakeVerdict, RetryPolicy};
pub use server_config::{Http3ConfigError, Http3ServerConfig};

/// The protocol's name in TLS (ALPN).
pub const ALPN: &[u8] = b"h3";

/// Error codes of RFC 9114 section 8.1, as QUIC has them.
pub mod error_code {
    use quinn::VarInt;

    /// Nothing is wrong: the connection or stream is not needed any more.
    pub const NO_ERROR: VarInt = VarInt::from_u32(0x100);
    /// The request was not looked at: sending it again is safe.
    pub const REQUEST_REJECTED: VarInt = VarInt::from_u32(0x10b);
    /// The answer breaks off.
    pub const REQUEST_CANCELLED: VarInt = VarInt::from_u32(0x10c);
    /// The peer makes work for the sake of it.
    pub const EXCESSIVE_LOAD: VarInt = VarInt::from_u32(0x107);
}
