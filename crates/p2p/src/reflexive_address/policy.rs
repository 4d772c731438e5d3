//! The rendezvous' side, without its sockets: which question gets which answer.

use std::net::SocketAddr;

use ring::hmac;

use super::encoding::{self, ObserverToken};
use super::{AddressCookie, BindingResponse, MESSAGE_BYTES, ResponseOrigin};
use crate::message::HexBytes;
use crate::ticket::RendezvousKey;

/// How long a cookie's key is good, in seconds; that of the span before is taken, too.
const COOKIE_PERIOD_SECS: u64 = 60;

/// What is to be done with a datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindingDecision {
    /// Nothing: whoever sent it proved nothing.
    Drop,
    /// Send this, from there.
    Respond {
        /// From which socket.
        origin: ResponseOrigin,
        /// What, to where the question came from.
        bytes: [u8; MESSAGE_BYTES],
    },
}

/// Judges questions. It stores nothing: all it must know is in the key and in the question.
#[derive(Debug, Clone)]
pub struct ObserverPolicy {
    key: hmac::Key,
}

impl ObserverPolicy {
    /// With the rendezvous' key.
    pub fn new(key: &RendezvousKey) -> Self {
        Self {
            key: key.observer_key(),
        }
    }

    /// A token that ends then (seconds since 1970), and the key that goes with it. `draw`: eight random bytes.
    pub fn mint_token(&self, until: u64, random: [u8; 8]) -> (HexBytes<16>, HexBytes<32>) {
        let mut token = [0; 16];
        token[..8].copy_from_slice(&random);
        token[8..].copy_from_slice(&until.to_le_bytes());
        (HexBytes(token), HexBytes(self.token_key(&token)))
    }

    /// A question came to the socket `here` (second address, second port) from there, at this time (seconds since 1970).
    pub fn decide(
        &self,
        request: &[u8],
        received_on: (bool, bool),
        from: SocketAddr,
        unix: u64,
    ) -> BindingDecision {
        self.check_request(request, received_on, from, unix)
            .unwrap_or(BindingDecision::Drop)
    }

    fn check_request(
        &self,
        request: &[u8],
        received_on: (bool, bool),
        from: SocketAddr,
        unix: u64,
    ) -> Option<BindingDecision> {
        let token = encoding::read_token(request)?;
        let [.., a, b, c, d, e, f, g, h] = token;
        if u64::from_le_bytes([a, b, c, d, e, f, g, h]) <= unix {
            return None;
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.token_key(&token));
        let request = encoding::decode_request(request, &key)?;
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let period = unix / COOKIE_PERIOD_SECS;
        let cookie = self.derive_cookie(&token, from, period);
        let proven = [period, period.saturating_sub(1)]
            .iter()
            .any(|span| self.derive_cookie(&token, from, *span) == request.cookie);
        let origin = if proven {
            request.origin
        } else {
            ResponseOrigin::SameSocket
        };
        let (second_address, second_port) = origin_socket(received_on, origin);
        let response = BindingResponse {
            second_address,
            second_port,
            transaction_id: request.transaction_id,
            cookie,
            mapped_addr: from,
        };
        Some(BindingDecision::Respond {
            origin,
            bytes: encoding::encode_response(&response, &token, &key),
        })
    }

    fn token_key(&self, token: &ObserverToken) -> [u8; 32] {
        derive_digest(&self.key, &[b"token", token])
    }

    fn derive_cookie(&self, token: &ObserverToken, from: SocketAddr, period: u64) -> AddressCookie {
        let [cookie @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = derive_digest(
            &self.key,
            &[
                b"cookie",
                token,
                &period.to_le_bytes(),
                from.to_string().as_bytes(),
            ],
        );
        cookie
    }
}

/// Which socket an answer leaves from.
pub fn origin_socket(
    (second_address, second_port): (bool, bool),
    origin: ResponseOrigin,
) -> (bool, bool) {
    match origin {
        ResponseOrigin::SameSocket => (second_address, second_port),
        ResponseOrigin::OtherPort => (second_address, !second_port),
        ResponseOrigin::OtherAddress => (!second_address, second_port),
    }
}

fn derive_digest(key: &hmac::Key, parts: &[&[u8]]) -> [u8; 32] {
    let tag = hmac::sign(key, &parts.concat());
    let mut bytes = [0; 32];
    bytes.copy_from_slice(tag.as_ref());
    bytes
}
