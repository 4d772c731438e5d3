//! Reasons why an authority on disk cannot be used. Each text names the file and the remedy.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nearpath_types::NodeName;
use nearpath_types::status::rfc3339::format_time;
use nearpath_wire::identity::CertificateRequestError;

use crate::authority::IssueError;

/// Reasons why an authority on disk cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityFilesError {
    /// The trust domain's name is invalid (SPIFFE ID section 2.1).
    #[error("invalid trust domain {0:?}: expected 1 to 255 of a-z, 0-9, '.', '-' and '_'")]
    TrustDomain(String),
    /// The folder holds an authority already.
    #[error("{} exists: choose another folder, or replace the root with `nearpath ca rotate`", .0.display())]
    Exists(PathBuf),
    /// The folder holds no authority.
    #[error("{} does not exist: create an authority with `nearpath ca init --dir {}`, or name its folder with --dir", path.display(), dir.display())]
    Missing {
        /// The missing file or folder.
        path: PathBuf,
        /// Folder of the authority.
        dir: PathBuf,
    },
    /// The system refused an operation.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Other users can read the key.
    #[error("{} has mode {mode:03o}, so other users can read the key: run chmod 600 on it", path.display())]
    Exposed {
        /// The key's file.
        path: PathBuf,
        /// Permissions of the file.
        mode: u32,
    },
    /// The key's file is invalid.
    #[error("{}: expected a private key as PEM (PKCS #8): {why}; restore the file from a copy", path.display())]
    Key {
        /// The key's file.
        path: PathBuf,
        /// Fault of the file.
        why: String,
    },
    /// The file of roots is invalid.
    #[error("{}: {why}; restore the file from a copy", path.display())]
    Roots {
        /// The file of roots.
        path: PathBuf,
        /// Fault of the file.
        why: String,
    },
    /// The key belongs to none of the roots.
    #[error("{} belongs to no root in {}: restore both files from one copy", key.display(), roots.display())]
    KeyMismatch {
        /// The key's file.
        key: PathBuf,
        /// The file of roots.
        roots: PathBuf,
    },
    /// The certificate would be valid longer than its root.
    #[error("the certificate of {node} would end at {}, after the root at {}: use fewer --days, or replace the root with `nearpath ca rotate`", format_time(*not_after), format_time(*root_end))]
    BeyondRoot {
        /// Name of the node.
        node: NodeName,
        /// End of the certificate.
        not_after: SystemTime,
        /// End of the root.
        root_end: SystemTime,
    },
    /// No key could be created for a node.
    #[error(transparent)]
    Request(#[from] CertificateRequestError),
    /// A certificate could not be signed.
    #[error(transparent)]
    Issue(#[from] IssueError),
}

impl AuthorityFilesError {
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        Self::Io {
            action,
            path,
            source,
        }
    }

    pub(super) fn missing(path: &Path, dir: &Path) -> Self {
        Self::Missing {
            path: path.to_owned(),
            dir: dir.to_owned(),
        }
    }
}
