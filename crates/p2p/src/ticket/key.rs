//! The rendezvous' key: 32 bytes in a file that only its owner reads. Each use has a key of its own, derived from it.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::message::HexBytes;

/// See the module.
#[derive(Clone)]
pub struct RendezvousKey([u8; 32]);

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or made.
    #[error("the key's file {}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It holds something else.
    #[error("the key's file {} does not hold 64 hexadecimal digits: remove it to have a new one made", path.display())]
    Form {
        /// Which.
        path: PathBuf,
    },
}

impl RendezvousKey {
    /// These bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, for who mints tickets in another language.
    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// Reads the file.
    ///
    /// # Errors
    /// When it is not there, or holds no key.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let text = fs::read_to_string(path).map_err(|source| KeyError::File {
            path: path.into(),
            source,
        })?;
        let HexBytes(bytes) =
            HexBytes::parse(text.trim()).ok_or_else(|| KeyError::Form { path: path.into() })?;
        Ok(Self(bytes))
    }

    /// Reads the file, or makes it (mode 0600) with a key drawn at random.
    ///
    /// # Errors
    /// When it holds no key, or cannot be made.
    pub fn read_or_create(path: &Path) -> Result<Self, KeyError> {
        match create_key_file(path) {
            Ok(key) => Ok(key),
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

    /// For what observers ask and answer.
    pub(crate) fn observer_key(&self) -> hmac::Key {
        self.derive_key(b"nearpath observe 1")
    }

    fn derive_key(&self, text: &[u8]) -> hmac::Key {
        let outer = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&outer, text).as_ref())
    }
}

/// Under its name the file is whole from the first moment, and an existing one is never replaced.
fn create_key_file(path: &Path) -> io::Result<RendezvousKey> {
    if path.exists() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let mut bytes = [0; 32];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("the machine gives no random bytes"))?;
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
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
