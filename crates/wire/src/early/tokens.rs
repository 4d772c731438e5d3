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

/// Tokens that are remembered as used; beyond that none is accepted, and callers prove their address the usual way.
const MOST: usize = 64 * 1024;

/// The secret under which a worker's address tokens are made. It goes to the worker with its credentials, because tokens are minted before
/// it starts.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenKey(pub [u8; 32]);

impl TokenKey {
    /// One that nobody else has.
    ///
    /// # Errors
    /// When the system's random numbers fail.
    pub fn random() -> io::Result<Self> {
        let mut key = [0; 32];
        let failed = |_| io::Error::other("the system has no random numbers");
        SystemRandom::new().fill(&mut key).map_err(failed)?;
        Ok(Self(key))
    }

    pub(crate) fn for_quic(&self) -> Arc<dyn HandshakeTokenKey> {
        Arc::new(hkdf::Salt::new(hkdf::HKDF_SHA256, b"nearpath address tokens").extract(&self.0))
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(…)")
    }
}

/// The tokens that were used.
#[derive(Default)]
pub struct Used(Mutex<HashSet<u128>>);

impl TokenLog for Used {
    fn check_and_insert(&self, nonce: u128, _: SystemTime, _: Duration) -> Result<(), TokenReuseError> {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if used.len() >= MOST || !used.insert(nonce) {
            return Err(TokenReuseError);
        }
        Ok(())
    }
}
