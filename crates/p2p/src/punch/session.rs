//! Session of two workers, granted by the rendezvous before they search.
//!
//! The probes' key derives from the rendezvous' secret, the session's id and expiry, and both
//! identities. A probe therefore verifies only between these two in this session: another identity
//! or another expiry gives another key. The order of identities gives the roles, without a message.

use std::fmt;
use std::time::Instant;

use nearpath_types::SpiffeId;
use ring::hmac;

/// Number of a session: random, never used twice.
pub type SessionId = [u8; 16];

/// Role of a side: which one nominates pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionRole {
    /// Side whose identity is the lesser text; it nominates.
    Leader,
    /// The other side.
    Follower,
}

/// Grant of the rendezvous to both sides.
#[derive(Clone)]
pub struct PunchGrant {
    /// Number of the session.
    pub id: SessionId,
    /// Secret that both sides and the rendezvous know.
    pub secret: [u8; 32],
    /// Expiry in seconds since 1970; part of the key.
    pub expires: u64,
}

/// Session as one side sees it.
#[derive(Clone)]
pub struct PunchSession {
    /// Number of the session.
    pub id: SessionId,
    /// Role of this side.
    pub role: SessionRole,
    /// Expiry by this machine's clock.
    pub expires_at: Instant,
    probe_key: hmac::Key,
}

/// Worker was introduced to itself: a fault of the rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("both sides of the session have the same identity")]
pub struct SameIdentity;

impl PunchSession {
    /// Creates the session of `me` with `peer`. `until`: `grant.expires` by this machine's clock.
    pub fn new(
        grant: &PunchGrant,
        me: &SpiffeId,
        peer: &SpiffeId,
        until: Instant,
    ) -> Result<Self, SameIdentity> {
        let (me, peer) = (me.to_string(), peer.to_string());
        // The order of texts needs no message, so both sides agree without a round trip.
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

    /// Returns the HMAC-SHA256 key of the probes.
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

/// Derives the key; see `contract/punch.md`, "The key".
fn derive_key(grant: &PunchGrant, leader: &str, follower: &str) -> hmac::Key {
    let mut text = b"nearpath punch 1".to_vec();
    text.extend_from_slice(&grant.id);
    text.extend_from_slice(&grant.expires.to_le_bytes());
    for name in [leader, follower] {
        // Length prefixes: two identities must not be shifted into each other.
        text.extend_from_slice(&(name.len() as u64).to_le_bytes());
        text.extend_from_slice(name.as_bytes());
    }
    // HMAC as a key derivation function: the secret itself signs nothing else.
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
