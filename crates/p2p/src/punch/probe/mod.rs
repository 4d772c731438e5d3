//! Probes: the messages by which two sides find out whether a pair works (`contract/punch.md`).
//!
//! All have one size, so that nobody gets back more than he sent. One message may answer and ask at once: a probe that comes
//! is answered with exactly one. What does not verify is nobody's word, and gets no answer.

mod encoding;

use std::net::SocketAddr;

use ring::hmac;

use crate::punch::session::{PunchSession, SessionId, SessionRole};

/// Every probe has so many bytes, over UDP and TCP.
pub const PROBE_BYTES: usize = 100;
/// Its last so many are the HMAC.
const TAG_BYTES: usize = 32;

/// An encoded probe.
pub type ProbeBytes = [u8; PROBE_BYTES];

/// What a probe says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Who sent it: a probe that comes back to its sender is none.
    pub sender: SessionRole,
    /// Drawn by the sender for the session; another one is another process.
    pub nonce: u64,
    /// It asks for an answer, and bears this number: the sender's next, from 1.
    pub request: Option<u64>,
    /// It answers the peer's ask of this number.
    pub response: Option<u64>,
    /// From the leader: this pair is to be taken. From the follower: it is taken. The how-manieth, from 1.
    pub nomination: Option<u16>,
    /// In answers: where the ask came from, as seen by who answers.
    pub mapped_addr: Option<SocketAddr>,
}

/// Why bytes are no probe of this session's peer. Never told to the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// Another size, another beginning, another version, or bits that have no meaning.
    #[error("it has not the form of a probe")]
    Form,
    /// Of another session.
    #[error("it is of another session")]
    Session,
    /// The HMAC is wrong.
    #[error("it does not verify")]
    Tag,
    /// What this side has sent itself.
    #[error("it is one of this side's own")]
    Own,
}

impl Probe {
    /// Its bytes, signed.
    pub fn encode(&self, session: &PunchSession) -> ProbeBytes {
        let mut bytes = encoding::encode(self, &session.id);
        let tag = hmac::sign(session.probe_key(), &bytes[..PROBE_BYTES - TAG_BYTES]);
        bytes[PROBE_BYTES - TAG_BYTES..].copy_from_slice(tag.as_ref());
        bytes
    }

    /// Reads and verifies what came. The cheap looks come first: who floods pays more than this side.
    pub fn decode(bytes: &[u8], session: &PunchSession) -> Result<Self, ProbeError> {
        let bytes: &ProbeBytes = bytes.try_into().map_err(|_| ProbeError::Form)?;
        if session_of(bytes).ok_or(ProbeError::Form)? != session.id {
            return Err(ProbeError::Session);
        }
        let (text, tag) = bytes.split_at(PROBE_BYTES - TAG_BYTES);
        hmac::verify(session.probe_key(), text, tag).map_err(|_| ProbeError::Tag)?;
        let probe = encoding::decode(bytes).ok_or(ProbeError::Form)?;
        if probe.sender == session.role {
            Err(ProbeError::Own)
        } else {
            Ok(probe)
        }
    }
}

/// The session that a datagram claims to be of, if it looks like a probe: how a socket with several sessions, or with QUIC
/// beside them, tells what is whose.
pub fn session_of(bytes: &[u8]) -> Option<SessionId> {
    encoding::read_session(bytes)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use nearpath_types::SpiffeId;
    use proptest::prelude::*;

    use super::*;
    use crate::punch::session::PunchGrant;

    fn sessions() -> (PunchSession, PunchSession) {
        let grant = PunchGrant {
            id: [1; 16],
            secret: [2; 32],
            expires: 9,
        };
        let (a, b) = (
            SpiffeId::for_gateway("test", "a"),
            SpiffeId::for_gateway("test", "b"),
        );
        let session = |me, peer| PunchSession::new(&grant, me, peer, Instant::now()).unwrap();
        (session(&a, &b), session(&b, &a))
    }

    fn probe() -> impl Strategy<Value = Probe> {
        let numbers = (
            any::<u64>(),
            1u64..,
            prop::option::of(1u64..),
            prop::option::of(1u16..),
        );
        (numbers, any::<Option<(std::net::IpAddr, u16)>>()).prop_map(
            |((nonce, ask, answer, nominates), seen)| Probe {
                sender: SessionRole::Leader,
                nonce,
                request: Some(ask),
                response: answer,
                nomination: nominates,
                mapped_addr: seen.map(SocketAddr::from),
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(probe in probe()) {
            let (leader, follower) = sessions();
            let bytes = probe.encode(&leader);
            prop_assert_eq!(Probe::decode(&bytes, &follower), Ok(probe));
            prop_assert_eq!(Probe::decode(&bytes, &leader), Err(ProbeError::Own));
            prop_assert_eq!(session_of(&bytes), Some(leader.id));
        }

        #[test]
        fn a_changed_bit_is_noticed(probe in probe(), bit in 0..PROBE_BYTES * 8) {
            let (leader, follower) = sessions();
            let mut bytes = probe.encode(&leader);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Probe::decode(&bytes, &follower).is_err());
        }

        #[test]
        fn whatever_comes_is_no_probe(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            prop_assert!(Probe::decode(&bytes, &sessions().1).is_err());
        }
    }
}
