//! HTTP/3 (RFC 9114) for everybody: the server's end, with limits that a hostile peer cannot stretch.
//!
//! QUIC is quinn's and HTTP/3 the `h3` crate's. What is here lies between and around them: the streams with limits of their own
//! ([`transport`]), requests and their bodies as the rest of nearpath knows them ([`Requests`], [`Incoming`], [`Answering`]), whom to make
//! prove its address ([`Door`]), and which thread a packet belongs to ([`Steering`]). One [`Site`] is a port with a certificate; each
//! thread has an endpoint of its own on it.
//!
//! Between our own parts calls go on plain streams instead, see [`crate::quic`].

mod answer;
mod door;
mod head;
mod incoming;
mod meter;
mod requests;
mod site;
mod steer;
mod transport;

pub use answer::{Answering, Unsent};
pub use door::{Door, Verdict};
pub use head::Malformed;
pub use incoming::{Broken, Incoming};
pub use requests::{Asked, Lost, Opened, Requests, Stopped, Unread};
pub use site::{Site, SiteError};
pub use steer::{Instruction, PARTS, Part, Steering, Told};

/// The protocol's name in TLS (ALPN).
pub const ALPN: &[u8] = b"h3";

/// Error codes of RFC 9114 section 8.1, as QUIC has them.
pub mod code {
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
