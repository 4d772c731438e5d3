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
pub enum Role {
    /// The one whose identity is the lesser text: it decides.
    Leader,
    /// The other.
    Follower,
}

/// What the rendezvous gives to both.
#[derive(Clone)]
pub struct Grant {
    /// The session's number.
    pub id: SessionId,
    /// Known to the two and to the rendezvous.
    pub secret: [u8; 32],
    /// Seconds since 1970 at which it ends; part of the key.
    pub expires: u64,
}

/// A session as one of the two sees it.
#[derive(Clone)]
pub struct Session {
    /// The session's number.
    pub id: SessionId,
    /// What this side is.
    pub role: Role,
    /// When it ends, by this machine's clock.
    pub until: Instant,
    key: hmac::Key,
}

/// A worker was introduced to itself: the rendezvous is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("both sides of the session have the same identity")]
pub struct SameIdentity;

impl Session {
    /// The session of `me` with `peer`. `until`: `grant.expires` by this machine's clock.
    pub fn new(grant: &Grant, me: &SpiffeId, peer: &SpiffeId, until: Instant) -> Result<Self, SameIdentity> {
        let (me, peer) = (me.to_string(), peer.to_string());
        let role = match me.cmp(&peer) {
            std::cmp::Ordering::Less => Role::Leader,
            std::cmp::Ordering::Greater => Role::Follower,
            std::cmp::Ordering::Equal => return Err(SameIdentity),
        };
        let (leader, follower) = if role == Role::Leader { (&me, &peer) } else { (&peer, &me) };
        Ok(Self { id: grant.id, role, until, key: derive(grant, leader, follower) })
    }

    /// The key of the probes: HMAC-SHA256.
    pub(crate) fn key(&self) -> &hmac::Key {
        &self.key
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id).field("role", &self.role).finish_non_exhaustive()
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant").field("id", &self.id).field("expires", &self.expires).finish_non_exhaustive()
    }
}

/// See `contract/punch.md`, "The key".
fn derive(grant: &Grant, leader: &str, follower: &str) -> hmac::Key {
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

    fn id(node: &str) -> SpiffeId {
        SpiffeId::gateway("test", node)
    }

    #[test]
    fn one_leads_and_the_other_follows() {
        let grant = Grant { id: [1; 16], secret: [2; 32], expires: 9 };
        let now = Instant::now();
        let a = Session::new(&grant, &id("a"), &id("b"), now).unwrap();
        let b = Session::new(&grant, &id("b"), &id("a"), now).unwrap();
        assert_eq!((a.role, b.role), (Role::Leader, Role::Follower));
        assert!(Session::new(&grant, &id("a"), &id("a"), now).is_err());
    }

    #[test]
    fn the_key_is_bound_to_all_that_the_session_is() {
        let (grant, now) = (Grant { id: [1; 16], secret: [2; 32], expires: 9 }, Instant::now());
        let tag = |grant: &Grant, peer: &str| {
            let session = Session::new(grant, &id("a"), &id(peer), now).unwrap();
            hmac::sign(session.key(), b"x").as_ref().to_vec()
        };
        let first = tag(&grant, "b");
        assert_eq!(first, tag(&grant, "b"));
        assert_ne!(first, tag(&grant, "c"));
        assert_ne!(first, tag(&Grant { expires: 10, ..grant.clone() }, "b"));
        assert_ne!(first, tag(&Grant { id: [3; 16], ..grant.clone() }, "b"));
        assert_ne!(first, tag(&Grant { secret: [3; 32], ..grant.clone() }, "b"));
    }

    #[test]
    fn nobody_prints_a_secret() {
        let grant = Grant { id: [1; 16], secret: [77; 32], expires: 9 };
        let session = Session::new(&grant, &id("a"), &id("b"), Instant::now()).unwrap();
        assert!(!format!("{grant:?} {session:?}").contains("77"));
    }
}
