//! Probes: the messages by which two sides find out whether a pair works (`contract/punch.md`).
//!
//! All have one size, so that nobody gets back more than he sent. One message may answer and ask at once: a probe that comes
//! is answered with exactly one. What does not verify is nobody's word, and gets no answer.

mod encoding;

use std::net::SocketAddr;

use ring::hmac;

use crate::punch::session::{Role, Session, SessionId};

/// Every probe has so many bytes, over UDP and TCP.
pub const SIZE: usize = 100;
/// Its last so many are the HMAC.
const TAG: usize = 32;

/// An encoded probe.
pub type Bytes = [u8; SIZE];

/// What a probe says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Who sent it: a probe that comes back to its sender is none.
    pub from: Role,
    /// Drawn by the sender for the session; another one is another process.
    pub nonce: u64,
    /// It asks for an answer, and bears this number: the sender's next, from 1.
    pub ask: Option<u64>,
    /// It answers the peer's ask of this number.
    pub answer: Option<u64>,
    /// From the leader: this pair is to be taken. From the follower: it is taken. The how-manieth, from 1.
    pub nominates: Option<u16>,
    /// In answers: where the ask came from, as seen by who answers.
    pub seen: Option<SocketAddr>,
}

/// Why bytes are no probe of this session's peer. Never told to the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoProbe {
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
    pub fn encode(&self, session: &Session) -> Bytes {
        let mut bytes = encoding::write(self, &session.id);
        let tag = hmac::sign(session.key(), &bytes[..SIZE - TAG]);
        bytes[SIZE - TAG..].copy_from_slice(tag.as_ref());
        bytes
    }

    /// Reads and verifies what came. The cheap looks come first: who floods pays more than this side.
    pub fn decode(bytes: &[u8], session: &Session) -> Result<Self, NoProbe> {
        let bytes: &Bytes = bytes.try_into().map_err(|_| NoProbe::Form)?;
        if session_of(bytes).ok_or(NoProbe::Form)? != session.id {
            return Err(NoProbe::Session);
        }
        let (text, tag) = bytes.split_at(SIZE - TAG);
        hmac::verify(session.key(), text, tag).map_err(|_| NoProbe::Tag)?;
        let probe = encoding::read(bytes).ok_or(NoProbe::Form)?;
        if probe.from == session.role { Err(NoProbe::Own) } else { Ok(probe) }
    }
}

/// The session that a datagram claims to be of, if it looks like a probe: how a socket with several sessions, or with QUIC
/// beside them, tells what is whose.
pub fn session_of(bytes: &[u8]) -> Option<SessionId> {
    encoding::session(bytes)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use nearpath_types::SpiffeId;
    use proptest::prelude::*;

    use super::*;
    use crate::punch::session::Grant;

    fn sessions() -> (Session, Session) {
        let grant = Grant { id: [1; 16], secret: [2; 32], expires: 9 };
        let (a, b) = (SpiffeId::gateway("test", "a"), SpiffeId::gateway("test", "b"));
        let session = |me, peer| Session::new(&grant, me, peer, Instant::now()).unwrap();
        (session(&a, &b), session(&b, &a))
    }

    fn probe() -> impl Strategy<Value = Probe> {
        let numbers = (any::<u64>(), 1u64.., prop::option::of(1u64..), prop::option::of(1u16..));
        (numbers, any::<Option<(std::net::IpAddr, u16)>>()).prop_map(|((nonce, ask, answer, nominates), seen)| Probe {
            from: Role::Leader,
            nonce,
            ask: Some(ask),
            answer,
            nominates,
            seen: seen.map(SocketAddr::from),
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(probe in probe()) {
            let (leader, follower) = sessions();
            let bytes = probe.encode(&leader);
            prop_assert_eq!(Probe::decode(&bytes, &follower), Ok(probe));
            prop_assert_eq!(Probe::decode(&bytes, &leader), Err(NoProbe::Own));
            prop_assert_eq!(session_of(&bytes), Some(leader.id));
        }

        #[test]
        fn a_changed_bit_is_noticed(probe in probe(), bit in 0..SIZE * 8) {
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
