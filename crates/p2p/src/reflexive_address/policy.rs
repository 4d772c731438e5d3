//! The rendezvous' side, without its sockets: which question gets which answer.

use std::net::SocketAddr;

use ring::hmac;

use super::encoding::{self, Token};
use super::{Answer, Cookie, From, SIZE};
use crate::message::Hex;
use crate::ticket::Key;

/// How long a cookie's key is good, in seconds; that of the span before is taken, too.
const COOKIE_SPAN: u64 = 60;

/// What is to be done with a datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: whoever sent it proved nothing.
    Drop,
    /// Send this, from there.
    Answer {
        /// From which socket.
        from: From,
        /// What, to where the question came from.
        bytes: [u8; SIZE],
    },
}

/// Judges questions. It stores nothing: all it must know is in the key and in the question.
#[derive(Debug, Clone)]
pub struct Judge {
    key: hmac::Key,
}

impl Judge {
    /// With the rendezvous' key.
    pub fn new(key: &Key) -> Self {
        Self { key: key.observing() }
    }

    /// A token that ends then (seconds since 1970), and the key that goes with it. `draw`: eight random bytes.
    pub fn token(&self, until: u64, draw: [u8; 8]) -> (Hex<16>, Hex<32>) {
        let mut token = [0; 16];
        token[..8].copy_from_slice(&draw);
        token[8..].copy_from_slice(&until.to_le_bytes());
        (Hex(token), Hex(self.secret(&token)))
    }

    /// A question came to the socket `here` (second address, second port) from there, at this time (seconds since 1970).
    pub fn judge(&self, question: &[u8], here: (bool, bool), seen: SocketAddr, unix: u64) -> Verdict {
        self.consider(question, here, seen, unix).unwrap_or(Verdict::Drop)
    }

    fn consider(&self, question: &[u8], here: (bool, bool), seen: SocketAddr, unix: u64) -> Option<Verdict> {
        let token = encoding::token(question)?;
        let [.., a, b, c, d, e, f, g, h] = token;
        if u64::from_le_bytes([a, b, c, d, e, f, g, h]) <= unix {
            return None;
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.secret(&token));
        let question = encoding::read_question(question, &key)?;
        let seen = SocketAddr::new(seen.ip().to_canonical(), seen.port());
        let span = unix / COOKIE_SPAN;
        let cookie = self.cookie(&token, seen, span);
        let proven =
            [span, span.saturating_sub(1)].iter().any(|span| self.cookie(&token, seen, *span) == question.cookie);
        let from = if proven { question.from } else { From::Here };
        let (second_address, second_port) = leaves(here, from);
        let answer = Answer { second_address, second_port, number: question.number, cookie, seen };
        Some(Verdict::Answer { from, bytes: encoding::write_answer(&answer, &token, &key) })
    }

    fn secret(&self, token: &Token) -> [u8; 32] {
        digest(&self.key, &[b"token", token])
    }

    fn cookie(&self, token: &Token, seen: SocketAddr, span: u64) -> Cookie {
        let [cookie @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] =
            digest(&self.key, &[b"cookie", token, &span.to_le_bytes(), seen.to_string().as_bytes()]);
        cookie
    }
}

/// Which socket an answer leaves from.
pub fn leaves((second_address, second_port): (bool, bool), from: From) -> (bool, bool) {
    match from {
        From::Here => (second_address, second_port),
        From::OtherPort => (second_address, !second_port),
        From::OtherAddress => (!second_address, second_port),
    }
}

fn digest(key: &hmac::Key, parts: &[&[u8]]) -> [u8; 32] {
    let tag = hmac::sign(key, &parts.concat());
    let mut bytes = [0; 32];
    bytes.copy_from_slice(tag.as_ref());
    bytes
}
