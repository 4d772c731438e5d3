//! Being told how one is seen from outside: the question and the answer, 80 bytes each, over UDP or TCP.
//!
//! Whoever has a line has a token and its key; everybody else's questions are dropped. An answer is as long as its question
//! and goes to where that came from, once. What is sent from another of the rendezvous' sockets goes only to an address
//! that has shown that it reads what is sent there: by the cookie of an earlier answer. `contract/rendezvous.md`,
//! "Observing".

mod encoding;
mod policy;

use std::net::SocketAddr;

pub use policy::{BindingDecision, ObserverPolicy, origin_socket};

use crate::message::HexBytes;

/// The length of a question, and of an answer.
pub const MESSAGE_BYTES: usize = 80;

/// From which socket the answer is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResponseOrigin {
    /// The one that is asked.
    SameSocket,
    /// The other port of the same address.
    OtherPort,
    /// The other address.
    OtherAddress,
}

/// Proof that an address was read at: what an answer to there held.
pub type AddressCookie = [u8; 16];

/// A worker's question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BindingRequest {
    /// From where the answer is wanted.
    pub origin: ResponseOrigin,
    /// The asker's own number; the answer bears it.
    pub transaction_id: u64,
    /// The last answer's, or zeros: without it there is an answer from [`ResponseOrigin::Here`] only.
    pub cookie: AddressCookie,
}

/// What the rendezvous says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BindingResponse {
    /// Sent from the second address.
    pub second_address: bool,
    /// Sent from the second port.
    pub second_port: bool,
    /// The question's.
    pub transaction_id: u64,
    /// For further questions from the same address.
    pub cookie: AddressCookie,
    /// Where the question came from.
    pub mapped_addr: SocketAddr,
}

/// What the line told: who asks, and the key.
#[derive(Debug, Clone)]
pub struct BindingClient {
    token: HexBytes<16>,
    key: ring::hmac::Key,
}

impl BindingClient {
    /// By the token and key of [`crate::message::ObserverAccess`].
    pub fn new(token: HexBytes<16>, key: &HexBytes<32>) -> Self {
        Self {
            token,
            key: ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key.0),
        }
    }

    /// A question as it is sent.
    pub fn encode_request(&self, request: &BindingRequest) -> [u8; MESSAGE_BYTES] {
        encoding::encode_request(request, &self.token.0, &self.key)
    }

    /// Reads an answer; `NoConnection`: it is none, or not the rendezvous'.
    pub fn decode_response(&self, bytes: &[u8]) -> Option<BindingResponse> {
        encoding::decode_response(bytes, &self.token.0, &self.key)
    }
}

impl crate::driver::BindingProtocol for BindingClient {
    fn request(&self) -> Vec<u8> {
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
