//! Address tokens (RFC 9000 section 8.1.3). A caller with one gets full-size responses before its
//! address is validated.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use quinn_proto::crypto::HandshakeTokenKey;
use quinn_proto::{TokenLog, TokenReuseError};
use ring::hkdf;
use ring::rand::{SecureRandom, SystemRandom};

/// Maximum number of used tokens that are remembered.
const MAX_USED_TOKENS: usize = 64 * 1024;

/// Secret of a worker's address tokens. The worker receives it with its credentials, because tokens
/// are minted before it starts.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenKey(pub [u8; 32]);

impl TokenKey {
    /// Creates a random key.
    ///
    /// # Errors
    /// When the system's random number generator fails.
    pub fn generate() -> io::Result<Self> {
        let mut key = [0; 32];
        let failed = |_| io::Error::other("the system's random number generator failed");
        SystemRandom::new().fill(&mut key).map_err(failed)?;
        Ok(Self(key))
    }

    pub(crate) fn handshake_key(&self) -> Arc<dyn HandshakeTokenKey> {
        // The salt separates this use of the key from any other one.
        Arc::new(hkdf::Salt::new(hkdf::HKDF_SHA256, b"nearpath address tokens").extract(&self.0))
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(…)")
    }
}

/// Tokens that were used. When there are too many, all are forgotten, and every token as old as the
/// newest of them is rejected from then on. A caller with such a token validates its address the
/// usual way and gets a new one.
#[derive(Default)]
pub struct UsedTokens(Mutex<TokenTable>);

#[derive(Default)]
struct TokenTable {
    nonces: HashSet<u128>,
    /// Issue time of the newest token in `nonces`.
    newest_issued: Option<SystemTime>,
    /// Tokens issued at this time or before are rejected.
    forgotten_until: Option<SystemTime>,
}

impl TokenTable {
    /// Records a use of the token. Returns true if it is the first one, as far as known.
    fn insert_first_use(&mut self, nonce: u128, issued: SystemTime, max_tokens: usize) -> bool {
        if self.nonces.len() >= max_tokens {
            // A bounded memory must forget something; refusing old tokens only costs a round trip.
            self.nonces.clear();
            self.forgotten_until = self.newest_issued;
        }
        // `None` orders below every time, so nothing is refused before the first overflow.
        if Some(issued) <= self.forgotten_until || !self.nonces.insert(nonce) {
            return false;
        }
        self.newest_issued = self.newest_issued.max(Some(issued));
        true
    }
}

impl TokenLog for UsedTokens {
    fn check_and_insert(
        &self,
        nonce: u128,
        issued: SystemTime,
        _: Duration,
    ) -> Result<(), TokenReuseError> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.insert_first_use(nonce, issued, MAX_USED_TOKENS) {
            Ok(())
        } else {
            Err(TokenReuseError)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn none_is_used_twice_however_few_are_remembered(
            most in 1_usize..5, tokens in proptest::collection::vec(0_u128..12, 0..60),
        ) {
            let (mut state, mut accepted) = (TokenTable::default(), HashSet::new());
            for nonce in tokens {
                // A token has a single issue time, so it is derived from the nonce.
                let issued = SystemTime::UNIX_EPOCH + Duration::from_secs(nonce as u64 % 4);
                if state.insert_first_use(nonce, issued, most) {
                    prop_assert!(accepted.insert(nonce), "{nonce} was used twice");
                }
                prop_assert!(state.nonces.len() <= most);
            }
        }
    }

    #[test]
    fn after_an_overflow_newer_tokens_are_accepted_again() {
        let at = |second| SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        let mut state = TokenTable::default();
        assert!(state.insert_first_use(1, at(1), 2) && state.insert_first_use(2, at(2), 2));
        assert!(
            !state.insert_first_use(3, at(2), 2),
            "it cannot be told from one that was forgotten"
        );
        assert!(state.insert_first_use(4, at(3), 2));
        assert!(!state.insert_first_use(4, at(3), 2) && !state.insert_first_use(1, at(1), 2));
    }
}
