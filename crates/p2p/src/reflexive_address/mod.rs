//! Mapped addresses of sockets: request and response, 80 bytes each, over UDP or TCP, in the manner
//! of STUN (RFC 8489).
//!
//! A worker with a control connection has a token and its key; requests of others are dropped. A
//! response is as long as its request and goes to its source, once. Another socket of the
//! rendezvous sends only to an address that has proven that it reads there, by the cookie of an
//! earlier response. See `contract/rendezvous.md`, "Observing".

mod encoding;
mod policy;

use std::net::SocketAddr;

pub use policy::{BindingDecision, ObserverPolicy, origin_socket};

use crate::message::HexBytes;

/// Bytes of a request, and of a response.
pub const MESSAGE_BYTES: usize = 80;

/// Socket of the rendezvous from which a response is requested (RFC 5780: RESPONSE-ORIGIN).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResponseOrigin {
    /// Socket that received the request.
    SameSocket,
    /// Other port of the same address.
    OtherPort,
    /// Other address.
    OtherAddress,
}

/// Proof that a client reads at an address: the content of a response to it.
pub type AddressCookie = [u8; 16];

/// Request of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BindingRequest {
    /// Socket that shall respond.
    pub origin: ResponseOrigin,
    /// Client's own number; the response repeats it.
    pub transaction_id: u64,
    /// Cookie of the last response, or zeros. Without one only [`ResponseOrigin::SameSocket`]
    /// responds.
    pub cookie: AddressCookie,
}

/// Response of the rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BindingResponse {
    /// True if it was sent from the second address.
    pub second_address: bool,
    /// True if it was sent from the second port.
    pub second_port: bool,
    /// Number of the request.
    pub transaction_id: u64,
    /// Cookie for further requests from the same address.
    pub cookie: AddressCookie,
    /// Source address of the request.
    pub mapped_addr: SocketAddr,
}

/// Client of the observers, with the token and key of a control connection.
#[derive(Debug, Clone)]
pub struct BindingClient {
    token: HexBytes<16>,
    key: ring::hmac::Key,
}

impl BindingClient {
    /// Creates a client with the token and key of [`crate::message::ObserverAccess`].
    pub fn new(token: HexBytes<16>, key: &HexBytes<32>) -> Self {
        Self {
            token,
            key: ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key.0),
        }
    }

    /// Encodes a request.
    pub fn encode_request(&self, request: &BindingRequest) -> [u8; MESSAGE_BYTES] {
        encoding::encode_request(request, &self.token.0, &self.key)
    }

    /// Decodes a response. `None`: malformed, or not of this rendezvous.
    pub fn decode_response(&self, bytes: &[u8]) -> Option<BindingResponse> {
        encoding::decode_response(bytes, &self.token.0, &self.key)
    }
}

impl crate::driver::BindingProtocol for BindingClient {
    fn request(&self) -> Vec<u8> {
        // No cookie: a driver needs the queried socket's response only.
        let request = BindingRequest {
            origin: ResponseOrigin::SameSocket,
            transaction_id: fastrand::u64(..),
            cookie: [0; 16],
        };
        self.encode_request(&request).to_vec()
    }

    fn parse_response(&self, bytes: &[u8]) -> Option<SocketAddr> {
        self.decode_response(bytes)
            .map(|response| response.mapped_addr)
    }
}

#[cfg(test)]
mod tests;
