//! Address tokens (RFC 9000 section 8.1.3): a caller that shows one is answered at length before its address is proven.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use quinn_proto::crypto::HandshakeTokenKey;
use quinn_proto::{TokenLog, TokenReuseError};
use ring::hkdf;
use ring::rand::{SecureRandom, SystemRandom};

/// Tokens that are remembered as used.
const MAX_USED_TOKENS: usize = 64 * 1024;

/// The secret under which a worker's address tokens are made. It goes to the worker with its credentials, because tokens are minted before
/// it starts.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenKey(pub [u8; 32]);

impl TokenKey {
    /// One that nobody else has.
    ///
    /// # Errors
    /// When the system's random numbers fail.
    pub fn generate() -> io::Result<Self> {
        let mut key = [0; 32];
        let failed = |_| io::Error::other("the system has no random numbers");
        SystemRandom::new().fill(&mut key).map_err(failed)?;
        Ok(Self(key))
    }

    pub(crate) fn handshake_key(&self) -> Arc<dyn HandshakeTokenKey> {
        Arc::new(hkdf::Salt::new(hkdf::HKDF_SHA256, b"nearpath address tokens").extract(&self.0))
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(…)")
    }
}

/// The tokens that were used. When they are too many they are forgotten, and with them every token that is as old as the newest of them
/// is refused from then on: who has one of those proves its address the usual way, and gets a new one.
#[derive(Default)]
pub struct UsedTokens(Mutex<TokenTable>);

#[derive(Default)]
struct TokenTable {
    nonces: HashSet<u128>,
    /// When the newest of them was made.
    newest_issued: Option<SystemTime>,
    /// Made then or before: forgotten.
    forgotten_until: Option<SystemTime>,
}

impl TokenTable {
    /// Whether this is the first time that the token is used, as far as that is known.
    fn insert_first_use(&mut self, nonce: u128, issued: SystemTime, max_tokens: usize) -> bool {
        if self.nonces.len() >= max_tokens {
            self.nonces.clear();
            self.forgotten_until = self.newest_issued;
        }
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
                // A token has one time at which it was made: the nonce stands for both.
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
