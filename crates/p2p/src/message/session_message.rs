//! Messages between the two sides of a session, as they are encoded.

use std::net::SocketAddr;

use crate::punch::Transport;
use crate::punch::agent::PunchMessage;
use crate::punch::candidate::{Candidate, CandidateKind, MAX_CANDIDATES};
use serde::{Deserialize, Serialize};

/// Message to the other side of a session; the rendezvous forwards it unread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SessionMessage {
    /// All candidates so far.
    Offer {
        /// At most [`MAX_CANDIDATES`] candidates.
        candidates: Vec<OfferedCandidate>,
    },
    /// Sender has given up on a direct connection.
    Relay,
    /// Text frame of the stream between the two; binary ones are [`super::RelayedFrame`]s.
    Text {
        /// Number of the frame, from the stream's beginning.
        number: u64,
        /// Number of frames received from the other side.
        acknowledged: u64,
        /// Text, as it goes over the relay.
        text: String,
    },
    /// Acknowledges frames of the stream.
    Ack {
        /// Number of frames received, from the stream's beginning.
        acknowledged: u64,
    },
}

/// Message belongs to the stream, not to the punching state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotPunchMessage;

/// Candidate as it is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedCandidate {
    /// `host` or `reflexive`. Other kinds are decoded as one that the state machine refuses.
    #[serde(with = "kind")]
    pub kind: CandidateKind,
    /// `udp` or `tcp`.
    #[serde(with = "transport")]
    pub transport: Transport,
    /// Address of the candidate.
    pub addr: SocketAddr,
    /// Priority; higher is better.
    pub priority: u32,
}

impl From<PunchMessage> for SessionMessage {
    fn from(message: PunchMessage) -> Self {
        match message {
            // The contract's bound also applies to this side: a longer list would be cut by the
            // peer.
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
            // A peer that sends more is not an error: the excess is ignored (`contract/punch.md`,
            // "Candidates").
            SessionMessage::Offer { candidates } => Ok(Self::Offer(
                candidates
                    .into_iter()
                    .take(MAX_CANDIDATES)
                    .map(Candidate::from)
                    .collect(),
            )),
            SessionMessage::Relay => Ok(Self::FallBack),
            SessionMessage::Text { .. } | SessionMessage::Ack { .. } => Err(NotPunchMessage),
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
            // A newer peer's kind is refused as a candidate, not as a message.
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
