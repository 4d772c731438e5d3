//! Server side without sockets: decides which request gets which response.

use std::net::SocketAddr;

use ring::hmac;

use super::encoding::{self, ObserverToken};
use super::{AddressCookie, BindingResponse, MESSAGE_BYTES, ResponseOrigin};
use crate::message::HexBytes;
use crate::ticket::RendezvousKey;

/// Period of a cookie's key, in seconds; cookies of the previous period are valid, too.
const COOKIE_PERIOD_SECS: u64 = 60;

/// Decision about a datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindingDecision {
    /// Drop it: its sender has proven nothing.
    Drop,
    /// Respond from the given socket.
    Respond {
        /// Socket that sends the response.
        origin: ResponseOrigin,
        /// Response, for the source of the request.
        bytes: [u8; MESSAGE_BYTES],
    },
}

/// Decides about requests. It stores nothing: everything it needs is in the key and in the request.
#[derive(Debug, Clone)]
pub struct ObserverPolicy {
    key: hmac::Key,
}

impl ObserverPolicy {
    /// Creates a policy with the rendezvous' key.
    pub fn new(key: &RendezvousKey) -> Self {
        Self {
            key: key.observer_key(),
        }
    }

    /// Mints a token with an expiry (seconds since 1970), and derives its key. `random`: eight
    /// random bytes.
    pub fn mint_token(&self, until: u64, random: [u8; 8]) -> (HexBytes<16>, HexBytes<32>) {
        let mut token = [0; 16];
        token[..8].copy_from_slice(&random);
        token[8..].copy_from_slice(&until.to_le_bytes());
        (HexBytes(token), HexBytes(self.token_key(&token)))
    }

    /// Decides about a request that came to a socket (second address, second port) at this time
    /// (seconds since 1970).
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
        // An expired token costs no HMAC.
        if u64::from_le_bytes([a, b, c, d, e, f, g, h]) <= unix {
            return None;
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.token_key(&token));
        let request = encoding::decode_request(request, &key)?;
        // A dual-stack socket sees IPv4 clients as mapped addresses; the worker must get the IPv4
        // one.
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let period = unix / COOKIE_PERIOD_SECS;
        let cookie = self.derive_cookie(&token, from, period);
        // Two periods: a cookie from the end of one must outlive its boundary.
        let proven = [period, period.saturating_sub(1)]
            .iter()
            .any(|span| self.derive_cookie(&token, from, *span) == request.cookie);
        // Without proof only the queried socket responds, so no other address can be made a victim.
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
        // Half of the digest: 128 bits cannot be guessed.
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

/// Returns the socket from which a response leaves.
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
