//! What the two sides of a session tell each other: the punching machine's messages, as they are written.

use std::net::SocketAddr;

use crate::punch::Transport;
use crate::punch::agent::Message;
use crate::punch::candidate::{Candidate, Kind, MOST};
use serde::{Deserialize, Serialize};

/// One message of [`Message`]; the rendezvous passes it on unread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "snake_case")]
pub enum Word {
    /// All candidates so far.
    Offer {
        /// At most [`MOST`].
        candidates: Vec<Offered>,
    },
    /// The sender has given up on a direct way.
    Relay,
    /// A piece of the way between the two that is no [`super::Parcel`]: what its ends say to each other.
    Text {
        /// Its number, from the way's beginning.
        piece: u64,
        /// So many pieces of the other side's have come.
        has: u64,
        /// As it goes over the relay.
        text: String,
    },
    /// So many pieces of the way have come.
    Has {
        /// From the way's beginning.
        pieces: u64,
    },
}

/// Words of the way are no messages of the machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotOfTheMachine;

/// A candidate as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offered {
    /// `host` or `reflexive`; others are read as what the machine refuses.
    #[serde(with = "kind")]
    pub kind: Kind,
    /// `udp` or `tcp`.
    #[serde(with = "transport")]
    pub transport: Transport,
    /// Where.
    pub addr: SocketAddr,
    /// Higher is better.
    pub priority: u32,
}

impl From<Message> for Word {
    fn from(message: Message) -> Self {
        match message {
            Message::Offer(candidates) => {
                Self::Offer { candidates: candidates.into_iter().take(MOST).map(Offered::from).collect() }
            }
            Message::Relay => Self::Relay,
        }
    }
}

impl TryFrom<Word> for Message {
    type Error = NotOfTheMachine;

    fn try_from(word: Word) -> Result<Self, NotOfTheMachine> {
        match word {
            Word::Offer { candidates } => {
                Ok(Self::Offer(candidates.into_iter().take(MOST).map(Candidate::from).collect()))
            }
            Word::Relay => Ok(Self::Relay),
            Word::Text { .. } | Word::Has { .. } => Err(NotOfTheMachine),
        }
    }
}

impl From<Candidate> for Offered {
    fn from(one: Candidate) -> Self {
        Self { kind: one.kind, transport: one.transport, addr: one.addr, priority: one.priority }
    }
}

impl From<Offered> for Candidate {
    fn from(one: Offered) -> Self {
        Self { kind: one.kind, transport: one.transport, addr: one.addr, priority: one.priority }
    }
}

mod kind {
    use crate::punch::candidate::Kind;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(kind: &Kind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match kind {
            Kind::Host => "host",
            Kind::Discovered => "discovered",
            Kind::Reflexive => "reflexive",
            Kind::Relayed => "relayed",
        })
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Kind, D::Error> {
        Ok(match String::deserialize(from)?.as_str() {
            "host" => Kind::Host,
            "reflexive" => Kind::Reflexive,
            "discovered" => Kind::Discovered,
            _ => Kind::Relayed,
        })
    }
}

pub(super) mod transport {
    use crate::punch::Transport;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(in super::super) fn serialize<S: Serializer>(transport: &Transport, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match transport {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
        })
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Transport, D::Error> {
        match String::deserialize(from)?.as_str() {
            "udp" => Ok(Transport::Udp),
            "tcp" => Ok(Transport::Tcp),
            other => Err(de::Error::unknown_variant(other, &["udp", "tcp"])),
        }
    }
}
