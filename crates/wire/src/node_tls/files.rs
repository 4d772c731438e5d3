//! The three files of a node's folder.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::NodeCredentialsError;
use crate::tls;

/// Name of the file with the node's certificate (PEM), followed by its issuers below the root.
pub const CERTIFICATE_FILE: &str = "node.crt";
/// Name of the file with the node's private key (PEM, PKCS #8).
pub const KEY_FILE: &str = "node.key";
/// Name of the file with the roots that the node accepts (PEM).
pub const ROOTS_FILE: &str = "ca.crt";

/// Maximum size of a file. A certificate takes about 1 KiB; the rest is room for roots.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Contents of a node's files, unchecked.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeFiles {
    /// Contents of [`CERTIFICATE_FILE`].
    pub certificate: Vec<u8>,
    /// Contents of [`KEY_FILE`].
    pub key: Vec<u8>,
    /// Contents of [`ROOTS_FILE`].
    pub roots: Vec<u8>,
}

impl NodeFiles {
    /// Reads the files of a folder.
    ///
    /// # Errors
    /// [`NodeCredentialsError::File`].
    pub fn read(folder: &Path) -> Result<Self, NodeCredentialsError> {
        let read = |name: &str| {
            let path = folder.join(name);
            read_bounded(&path).map_err(|error| NodeCredentialsError::File {
                path,
                why: error.to_string(),
            })
        };
        Ok(Self {
            certificate: read(CERTIFICATE_FILE)?,
            key: read(KEY_FILE)?,
            roots: read(ROOTS_FILE)?,
        })
    }
}

/// Warns if every user of the machine can read the key in a folder.
pub(super) fn warn_if_key_exposed(folder: &Path) {
    tls::warn_if_exposed(&folder.join(KEY_FILE));
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    // The files are read each second: with room from the start, each takes two reads.
    let expected = file.metadata()?.len().min(MAX_FILE_BYTES);
    let mut contents = Vec::with_capacity(usize::try_from(expected).unwrap_or_default() + 1);
    // One byte more than allowed tells a file of the maximum size from a longer one.
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut contents)?;
    match contents.len() as u64 > MAX_FILE_BYTES {
        true => Err(io::Error::other("it is larger than 1 MiB")),
        false => Ok(contents),
    }
}

impl fmt::Debug for NodeFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is a secret.
        f.write_str("NodeFiles(…)")
    }
}
