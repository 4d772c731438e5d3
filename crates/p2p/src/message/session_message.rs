//! What the two sides of a session tell each other: the punching machine's messages, as they are written.

use std::net::SocketAddr;

use crate::punch::Transport;
use crate::punch::agent::PunchMessage;
use crate::punch::candidate::{Candidate, CandidateKind, MAX_CANDIDATES};
use serde::{Deserialize, Serialize};

/// One message of [`PunchMessage`]; the rendezvous passes it on unread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "snake_case")]
pub enum SessionMessage {
    /// All candidates so far.
    Offer {
        /// At most [`MOST`].
        candidates: Vec<OfferedCandidate>,
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
pub struct NotPunchMessage;

/// A candidate as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedCandidate {
    /// `host` or `reflexive`; others are read as what the machine refuses.
    #[serde(with = "kind")]
    pub kind: CandidateKind,
    /// `udp` or `tcp`.
    #[serde(with = "transport")]
    pub transport: Transport,
    /// Where.
    pub addr: SocketAddr,
    /// Higher is better.
    pub priority: u32,
}

impl From<PunchMessage> for SessionMessage {
    fn from(message: PunchMessage) -> Self {
        match message {
            PunchMessage::Offer(candidates) => Self::Offer {
                candidates: candidates
                    .into_iter()
                    .take(MAX_CANDIDATES)
                    .map(OfferedCandidate::from)
                    .collect(),
            },
            PunchMessage::FallBack => Self::Relay,
        }
    }
}

impl TryFrom<SessionMessage> for PunchMessage {
    type Error = NotPunchMessage;

    fn try_from(message: SessionMessage) -> Result<Self, NotPunchMessage> {
        match message {
            SessionMessage::Offer { candidates } => Ok(Self::Offer(
                candidates
                    .into_iter()
                    .take(MAX_CANDIDATES)
                    .map(Candidate::from)
                    .collect(),
            )),
            SessionMessage::Relay => Ok(Self::FallBack),
            SessionMessage::Text { .. } | SessionMessage::Has { .. } => Err(NotPunchMessage),
        }
    }
}

impl From<Candidate> for OfferedCandidate {
    fn from(candidate: Candidate) -> Self {
        Self {
            kind: candidate.kind,
            transport: candidate.transport,
            addr: candidate.addr,
            priority: candidate.priority,
        }
    }
}

impl From<OfferedCandidate> for Candidate {
    fn from(candidate: OfferedCandidate) -> Self {
        Self {
            kind: candidate.kind,
            transport: candidate.transport,
            addr: candidate.addr,
            priority: candidate.priority,
        }
    }
}

mod kind {
    use crate::punch::candidate::CandidateKind;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(kind: &CandidateKind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match kind {
            CandidateKind::Host => "host",
            CandidateKind::Discovered => "discovered",
            CandidateKind::Reflexive => "reflexive",
            CandidateKind::Relayed => "relayed",
        })
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<CandidateKind, D::Error> {
        Ok(match String::deserialize(from)?.as_str() {
            "host" => CandidateKind::Host,
            "reflexive" => CandidateKind::Reflexive,
            "discovered" => CandidateKind::Discovered,
            _ => CandidateKind::Relayed,
        })
    }
}

pub(super) mod transport {
    use crate::punch::Transport;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(in super::super) fn serialize<S: Serializer>(
        transport: &Transport,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(match transport {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
        })
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Transport, D::Error> {
        match String::deserialize(from)?.as_str() {
            "udp" => Ok(Transport::Udp),
            "tcp" => Ok(Transport::Tcp),
            other => Err(de::Error::unknown_variant(other, &["udp", "tcp"])),
        }
    }
}
