//! Secret key of the rendezvous: 32 bytes in a file that only its owner can read.
//!
//! Each use has its own key, derived from this one.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::message::HexBytes;

/// Secret key of a rendezvous.
#[derive(Clone)]
pub struct RendezvousKey([u8; 32]);

/// Reason why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// File cannot be read or created.
    #[error("key file {}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// File holds something else.
    #[error("key file {} does not hold 64 hexadecimal digits: remove it to create a new one", path.display())]
    Form {
        /// Path of the file.
        path: PathBuf,
    },
}

impl RendezvousKey {
    /// Wraps the given bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes, for programs in other languages that mint tickets.
    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// Reads the key file.
    ///
    /// # Errors
    /// Fails when the file does not exist, or holds no key.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let text = fs::read_to_string(path).map_err(|source| KeyError::File {
            path: path.into(),
            source,
        })?;
        let HexBytes(bytes) =
            HexBytes::parse(text.trim()).ok_or_else(|| KeyError::Form { path: path.into() })?;
        Ok(Self(bytes))
    }

    /// Reads the key file, or creates it (mode 0600) with a random key.
    ///
    /// # Errors
    /// Fails when the file holds no key, or cannot be created.
    pub fn read_or_create(path: &Path) -> Result<Self, KeyError> {
        match create_key_file(path) {
            Ok(key) => Ok(key),
            // Another process created it first: both must use the same key.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Self::read(path),
            Err(source) => Err(KeyError::File {
                path: path.into(),
                source,
            }),
        }
    }

    pub(super) fn ticket_key(&self) -> hmac::Key {
        self.derive_key(b"nearpath ticket 1")
    }

    pub(super) fn relay_key(&self) -> hmac::Key {
        self.derive_key(b"nearpath relay 1")
    }

    /// Returns the key for requests to observers and their responses.
    pub(crate) fn observer_key(&self) -> hmac::Key {
        self.derive_key(b"nearpath observe 1")
    }

    fn derive_key(&self, text: &[u8]) -> hmac::Key {
        // One key per purpose: a ticket can never pass as a relay token.
        let outer = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&outer, text).as_ref())
    }
}

/// Creates the key file.
///
/// The file is complete when it appears under its name, and an existing one is never replaced.
fn create_key_file(path: &Path) -> io::Result<RendezvousKey> {
    if path.exists() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let mut bytes = [0; 32];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("the system has no random numbers"))?;
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    // `hard_link` fails if the name exists, unlike `rename`: of two racing processes one wins.
    let linked = writeln!(file, "{}", HexBytes(bytes))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::hard_link(&draft, path));
    fs::remove_file(&draft)?;
    linked.map(|()| RendezvousKey(bytes))
}

impl fmt::Debug for RendezvousKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}
