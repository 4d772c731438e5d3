//! Probes: messages that show whether a pair works (`contract/punch.md`).
//!
//! All have one size, so no sender gets back more bytes than it sent. One message may respond and
//! request at once; each request gets exactly one probe. Unverified bytes get no response.

mod encoding;

use std::net::SocketAddr;

use ring::hmac;

use crate::punch::session::{PunchSession, SessionId, SessionRole};

/// Bytes of every probe, over UDP and TCP.
pub const PROBE_BYTES: usize = 100;

/// Datagram that opens the sender's NAT. It authenticates nothing: a copy of it is useless, unlike
/// one of a probe that the peer has never received.
pub const OPENING_DATAGRAM: [u8; 5] = encoding::MAGIC;
/// Bytes of the HMAC at its end.
const TAG_BYTES: usize = 32;

/// Encoded probe.
pub type ProbeBytes = [u8; PROBE_BYTES];

/// Content of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Role of the sender: a probe that comes back to its sender is invalid.
    pub sender: SessionRole,
    /// Random number of the sender for the session; another one means another process.
    pub nonce: u64,
    /// Number of this request, which asks for a response: the sender's next, from 1.
    pub request: Option<u64>,
    /// Number of the peer's request that this probe responds to.
    pub response: Option<u64>,
    /// Number of the nomination, from 1. From the leader: take this pair. From the follower: taken.
    pub nomination: Option<u16>,
    /// Source address of the request, in responses.
    pub mapped_addr: Option<SocketAddr>,
}

/// Reason why bytes are no probe of this session's peer. Never sent to the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// Wrong size, magic or version, or meaningless flags.
    #[error("the probe is malformed")]
    Form,
    /// Probe of another session.
    #[error("the probe is of another session")]
    Session,
    /// HMAC is wrong.
    #[error("the probe has a wrong HMAC")]
    Tag,
    /// Probe of this side.
    #[error("the probe is this side's own")]
    Own,
}

impl Probe {
    /// Encodes and signs the probe.
    pub fn encode(&self, session: &PunchSession) -> ProbeBytes {
        let mut bytes = encoding::encode(self, &session.id);
        let tag = hmac::sign(session.probe_key(), &bytes[..PROBE_BYTES - TAG_BYTES]);
        bytes[PROBE_BYTES - TAG_BYTES..].copy_from_slice(tag.as_ref());
        bytes
    }

    /// Decodes and verifies a probe. Cheap checks come first: a flood costs the sender more than
    /// this side.
    pub fn decode(bytes: &[u8], session: &PunchSession) -> Result<Self, ProbeError> {
        let bytes: &ProbeBytes = bytes.try_into().map_err(|_| ProbeError::Form)?;
        if session_of(bytes).ok_or(ProbeError::Form)? != session.id {
            return Err(ProbeError::Session);
        }
        let (text, tag) = bytes.split_at(PROBE_BYTES - TAG_BYTES);
        hmac::verify(session.probe_key(), text, tag).map_err(|_| ProbeError::Tag)?;
        let probe = encoding::decode(bytes).ok_or(ProbeError::Form)?;
        // A reflected probe verifies, as both sides share the key; the role tells it apart.
        if probe.sender == session.role {
            Err(ProbeError::Own)
        } else {
            Ok(probe)
        }
    }
}

/// Returns the session that a datagram claims, if it looks like a probe.
///
/// A socket with several sessions, or with QUIC beside them, uses it to assign datagrams.
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
            |((nonce, request, response, nomination), mapped_addr)| Probe {
                sender: SessionRole::Leader,
                nonce,
                request: Some(request),
                response,
                nomination,
                mapped_addr: mapped_addr.map(SocketAddr::from),
            },
        )
    }

    proptest! {
        #[test]
        fn encoded_probes_decode_to_themselves(probe in probe()) {
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
        fn arbitrary_bytes_are_no_probe(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            prop_assert!(Probe::decode(&bytes, &sessions().1).is_err());
        }
    }
}
