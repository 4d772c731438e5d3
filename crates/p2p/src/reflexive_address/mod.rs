//! Being told how one is seen from outside: the question and the answer, 80 bytes each, over UDP or TCP.
//!
//! Whoever has a line has a token and its key; everybody else's questions are dropped. An answer is as long as its question
//! and goes to where that came from, once. What is sent from another of the rendezvous' sockets goes only to an address
//! that has shown that it reads what is sent there: by the cookie of an earlier answer. `contract/rendezvous.md`,
//! "Observing".

mod encoding;
mod policy;

use std::net::SocketAddr;

pub use policy::{Judge, Verdict, leaves};

use crate::message::Hex;

/// The length of a question, and of an answer.
pub const SIZE: usize = 80;

/// From which socket the answer is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum From {
    /// The one that is asked.
    Here,
    /// The other port of the same address.
    OtherPort,
    /// The other address.
    OtherAddress,
}

/// Proof that an address was read at: what an answer to there held.
pub type Cookie = [u8; 16];

/// A worker's question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// From where the answer is wanted.
    pub from: From,
    /// The asker's own number; the answer bears it.
    pub number: u64,
    /// The last answer's, or zeros: without it there is an answer from [`From::Here`] only.
    pub cookie: Cookie,
}

/// What the rendezvous says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Sent from the second address.
    pub second_address: bool,
    /// Sent from the second port.
    pub second_port: bool,
    /// The question's.
    pub number: u64,
    /// For further questions from the same address.
    pub cookie: Cookie,
    /// Where the question came from.
    pub seen: SocketAddr,
}

/// What the line told: who asks, and the key.
#[derive(Debug, Clone)]
pub struct Asker {
    token: Hex<16>,
    key: ring::hmac::Key,
}

impl Asker {
    /// By the token and key of [`crate::message::Observe`].
    pub fn new(token: Hex<16>, key: &Hex<32>) -> Self {
        Self { token, key: ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key.0) }
    }

    /// A question as it is sent.
    pub fn ask(&self, question: &Question) -> [u8; SIZE] {
        encoding::write_question(question, &self.token.0, &self.key)
    }

    /// Reads an answer; `None`: it is none, or not the rendezvous'.
    pub fn read(&self, bytes: &[u8]) -> Option<Answer> {
        encoding::read_answer(bytes, &self.token.0, &self.key)
    }
}

impl crate::driver::Ask for Asker {
    fn question(&self) -> Vec<u8> {
        let question = Question { from: From::Here, number: fastrand::u64(..), cookie: [0; 16] };
        self.ask(&question).to_vec()
    }

    fn answer(&self, bytes: &[u8]) -> Option<SocketAddr> {
        self.read(bytes).map(|answer| answer.seen)
    }
}

#[cfg(test)]
mod tests;
