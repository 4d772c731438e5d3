//! What two workers got from the rendezvous before they look for each other: a session that is theirs alone.
//!
//! The key of the probes is derived from the rendezvous' secret, the session's id, its end and both identities. So a probe
//! verifies only between these two, in this session: who answers to another name, or keeps a session for longer, has
//! another key. Who leads follows from the names, and needs no message.

use std::fmt;
use std::time::Instant;

use nearpath_types::SpiffeId;
use ring::hmac;

/// A session's number: drawn at random by the rendezvous, never used twice.
pub type SessionId = [u8; 16];

/// Who decides which pair is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionRole {
    /// The one whose identity is the lesser text: it decides.
    Leader,
    /// The other.
    Follower,
}

/// What the rendezvous gives to both.
#[derive(Clone)]
pub struct PunchGrant {
    /// The session's number.
    pub id: SessionId,
    /// Known to the two and to the rendezvous.
    pub secret: [u8; 32],
    /// Seconds since 1970 at which it ends; part of the key.
    pub expires: u64,
}

/// A session as one of the two sees it.
#[derive(Clone)]
pub struct PunchSession {
    /// The session's number.
    pub id: SessionId,
    /// What this side is.
    pub role: SessionRole,
    /// When it ends, by this machine's clock.
    pub expires_at: Instant,
    probe_key: hmac::Key,
}

/// A worker was introduced to itself: the rendezvous is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("both sides of the session have the same identity")]
pub struct SameIdentity;

impl PunchSession {
    /// The session of `me` with `peer`. `until`: `grant.expires` by this machine's clock.
    pub fn new(
        grant: &PunchGrant,
        me: &SpiffeId,
        peer: &SpiffeId,
        until: Instant,
    ) -> Result<Self, SameIdentity> {
        let (me, peer) = (me.to_string(), peer.to_string());
        let role = match me.cmp(&peer) {
            std::cmp::Ordering::Less => SessionRole::Leader,
            std::cmp::Ordering::Greater => SessionRole::Follower,
            std::cmp::Ordering::Equal => return Err(SameIdentity),
        };
        let (leader, follower) = if role == SessionRole::Leader {
            (&me, &peer)
        } else {
            (&peer, &me)
        };
        Ok(Self {
            id: grant.id,
            role,
            expires_at: until,
            probe_key: derive_key(grant, leader, follower),
        })
    }

    /// The key of the probes: HMAC-SHA256.
    pub(crate) fn probe_key(&self) -> &hmac::Key {
        &self.probe_key
    }
}

impl fmt::Debug for PunchSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PunchGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("id", &self.id)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// See `contract/punch.md`, "The key".
fn derive_key(grant: &PunchGrant, leader: &str, follower: &str) -> hmac::Key {
    let mut text = b"nearpath punch 1".to_vec();
    text.extend_from_slice(&grant.id);
    text.extend_from_slice(&grant.expires.to_le_bytes());
    for name in [leader, follower] {
        text.extend_from_slice(&(name.len() as u64).to_le_bytes());
        text.extend_from_slice(name.as_bytes());
    }
    let outer = hmac::Key::new(hmac::HMAC_SHA256, &grant.secret);
    hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&outer, &text).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker_id(node: &str) -> SpiffeId {
        SpiffeId::for_gateway("test", node)
    }

    #[test]
    fn one_side_is_leader_and_the_other_follower() {
        let grant = PunchGrant {
            id: [1; 16],
            secret: [2; 32],
            expires: 9,
        };
        let now = Instant::now();
        let a = PunchSession::new(&grant, &worker_id("a"), &worker_id("b"), now).unwrap();
        let b = PunchSession::new(&grant, &worker_id("b"), &worker_id("a"), now).unwrap();
        assert_eq!(
            (a.role, b.role),
            (SessionRole::Leader, SessionRole::Follower)
        );
        assert!(PunchSession::new(&grant, &worker_id("a"), &worker_id("a"), now).is_err());
    }

    #[test]
    fn the_key_depends_on_every_part_of_the_session() {
        let (grant, now) = (
            PunchGrant {
                id: [1; 16],
                secret: [2; 32],
                expires: 9,
            },
            Instant::now(),
        );
        let tag = |grant: &PunchGrant, peer: &str| {
            let session = PunchSession::new(grant, &worker_id("a"), &worker_id(peer), now).unwrap();
            hmac::sign(session.probe_key(), b"x").as_ref().to_vec()
        };
        let first = tag(&grant, "b");
        assert_eq!(first, tag(&grant, "b"));
        assert_ne!(first, tag(&grant, "c"));
        assert_ne!(
            first,
            tag(
                &PunchGrant {
                    expires: 10,
                    ..grant.clone()
                },
                "b"
            )
        );
        assert_ne!(
            first,
            tag(
                &PunchGrant {
                    id: [3; 16],
                    ..grant.clone()
                },
                "b"
            )
        );
        assert_ne!(
            first,
            tag(
                &PunchGrant {
                    secret: [3; 32],
                    ..grant.clone()
                },
                "b"
            )
        );
    }

    #[test]
    fn debug_output_hides_the_secret() {
        let grant = PunchGrant {
            id: [1; 16],
            secret: [77; 32],
            expires: 9,
        };
        let session =
            PunchSession::new(&grant, &worker_id("a"), &worker_id("b"), Instant::now()).unwrap();
        assert!(!format!("{grant:?} {session:?}").contains("77"));
    }
}
