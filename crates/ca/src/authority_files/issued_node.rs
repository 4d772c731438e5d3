//! Files that a node needs, as its machine gets them.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::SystemTime;

use nearpath_wire::identity::Credentials;
use nearpath_wire::node_tls::{CERTIFICATE_FILE, KEY_FILE, NodeFiles, ROOTS_FILE};

use super::atomic_file::write_atomically;
use super::{AuthorityFilesError, PUBLIC_MODE, SECRET_MODE};

/// Certificate and key of a node, with the roots that it accepts.
#[derive(Debug)]
pub struct IssuedNode {
    files: NodeFiles,
    not_after: SystemTime,
}

impl IssuedNode {
    pub(super) fn new(credentials: &Credentials, roots: String) -> Self {
        let (certificate, key) = credentials.to_pem();
        Self {
            files: NodeFiles {
                certificate: certificate.into_bytes(),
                key: key.into_bytes(),
                roots: roots.into_bytes(),
            },
            not_after: credentials.not_after,
        }
    }

    /// Contents of the files.
    pub fn files(&self) -> &NodeFiles {
        &self.files
    }

    /// End of the certificate's validity.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Writes the files into a folder, which is created for its owner alone. Each file is replaced
    /// at once, the roots first.
    ///
    /// # Errors
    /// When the folder or a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), AuthorityFilesError> {
        let mut builder = DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|source| AuthorityFilesError::io("create", folder, source))?;
        // A process that follows the folder takes the change with the last file.
        for (name, contents, mode) in [
            (ROOTS_FILE, &self.files.roots, PUBLIC_MODE),
            (KEY_FILE, &self.files.key, SECRET_MODE),
            (CERTIFICATE_FILE, &self.files.certificate, PUBLIC_MODE),
        ] {
            write_atomically(&folder.join(name), contents, mode)?;
        }
        Ok(())
    }
}
