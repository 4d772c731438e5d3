//! What can go wrong with the disk, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// Why the data directory cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreOpenError {
    /// Another process is at work there.
    #[error(
        "{} is in use by process {pid}: stop that one first, or give this one another --data-dir", path.display()
    )]
    InUse {
        /// The data directory.
        path: PathBuf,
        /// Who holds it, as it wrote itself down.
        pid: String,
    },
    /// The operating system refuses.
    #[error("cannot use {} as data directory: {source}", path.display())]
    UnusableFolder {
        /// The data directory or a file in it.
        path: PathBuf,
        /// Its words.
        source: io::Error,
    },
    /// The content is damaged.
    #[error(
        "{} is damaged: {what}. Nothing was changed. Put a backup in its place, or save what `sqlite3 {} .recover` \
         finds, or move it away to start empty", path.display(), path.display()
    )]
    Damaged {
        /// The database.
        path: PathBuf,
        /// Where, as exactly as is known.
        what: String,
    },
    /// It is a database, but of another program.
    #[error("{} is not a nearpath database: move it away or choose another --data-dir", path.display())]
    NotNearpath {
        /// The database.
        path: PathBuf,
    },
    /// It was written by a newer version.
    #[error(
        "{} has schema {found}, this version knows up to {known}: run the newer nearpath, or put back the backup made \
         before the upgrade", path.display()
    )]
    NewerSchema {
        /// The database.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The newest schema that this version knows.
        known: i64,
    },
    /// Any other error of the database.
    #[error("cannot open {}: {source}", path.display())]
    Database {
        /// The database.
        path: PathBuf,
        /// SQLite's words.
        source: rusqlite::Error,
    },
    /// Credentials for the API are missing or unusable.
    #[error(transparent)]
    Credentials(#[from] crate::credentials::CredentialsError),
    /// No thread could be started.
    #[error("cannot start the store's thread: {0}")]
    Thread(io::Error),
}

impl StoreOpenError {
    /// Sorts an error of SQLite's that came up while opening.
    pub(super) fn from_sqlite(path: &Path, source: rusqlite::Error) -> Self {
        match source.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged {
                path: path.to_owned(),
                what: source.to_string(),
            },
            _ => Self::Database {
                path: path.to_owned(),
                source,
            },
        }
    }
}

/// Why a change was not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No space. Nothing was changed; the next change is tried anew.
    #[error("the disk under {} is full: nothing was changed; make room and repeat the request", path.display())]
    DiskFull {
        /// The database.
        path: PathBuf,
    },
    /// An error after which nothing is written until a restart.
    #[error(
        "{} is read-only since an error: {why}. Calls go on; mend the disk and restart nearpath", path.display()
    )]
    ReadOnly {
        /// The database.
        path: PathBuf,
        /// The first error.
        why: String,
    },
    /// Any other error: this change failed, the next may succeed.
    #[error("cannot write to {}: {why}", path.display())]
    Failed {
        /// The database.
        path: PathBuf,
        /// SQLite's words.
        why: String,
    },
}

impl StoreError {
    pub(super) fn from_sqlite(path: &Path, error: &rusqlite::Error) -> Self {
        let path = path.to_owned();
        let why = error.to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::DiskFull { path },
            Some(
                ErrorCode::SystemIoFailure
                | ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly,
            ) => Self::ReadOnly { path, why },
            _ => Self::Failed { path, why },
        }
    }
}
