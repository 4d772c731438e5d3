//! Errors of the disk, and their corrections.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// Reasons why the data directory cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreOpenError {
    /// Another process uses it.
    #[error(
        "{} is in use by process {pid}: stop that process, or use another --data-dir", path.display()
    )]
    InUse {
        /// The data directory.
        path: PathBuf,
        /// Process id of the owner, as written in the lock file.
        pid: String,
    },
    /// The operating system reported an error.
    #[error("cannot use {} as data directory: {source}", path.display())]
    UnusableFolder {
        /// The data directory or a file in it.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Another user owns the folder, and could change everything in it.
    #[error(
        "{} cannot be the data directory: it belongs to the user with id {owner}. Name a folder of your own, start as \
         that user, or change the owner with chown",
        path.display()
    )]
    ForeignFolder {
        /// The data directory.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
    },
    /// Other users can enter the folder, and changing that could harm them.
    #[error(
        "{} cannot be the data directory: other users can enter it (mode {mode:04o}), and it holds other files or is \
         for all users. Name an empty folder of your own, or run chmod 700 on it",
        path.display()
    )]
    ExposedFolder {
        /// The data directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The content is damaged.
    #[error(
        "{} is damaged: {what}. Nothing was changed. Put a backup in its place, or save what `sqlite3 {} .recover` \
         finds, or move it away to start empty", path.display(), path.display()
    )]
    Damaged {
        /// The database.
        path: PathBuf,
        /// Location of the damage, as exactly as known.
        what: String,
    },
    /// The database belongs to another program.
    #[error("{} is not a nearpath database: move it away or choose another --data-dir", path.display())]
    NotNearpath {
        /// The database.
        path: PathBuf,
    },
    /// A newer version wrote the database.
    #[error(
        "{} has schema {found}, this version knows up to {known}: run the newer nearpath, or put back the backup made \
         before the upgrade", path.display()
    )]
    NewerSchema {
        /// The database.
        path: PathBuf,
        /// Schema of the database.
        found: i64,
        /// Newest schema that this version supports.
        known: i64,
    },
    /// Any other error of the database.
    #[error("cannot open {}: {source}", path.display())]
    Database {
        /// The database.
        path: PathBuf,
        /// Error of SQLite.
        source: rusqlite::Error,
    },
    /// Credentials for the API are missing or unusable.
    #[error(transparent)]
    Credentials(#[from] crate::credentials::CredentialsError),
    /// The thread could not be started.
    #[error("cannot start the store's thread: {0}")]
    Thread(io::Error),
}

impl StoreOpenError {
    /// Classifies an error of SQLite during opening.
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

/// Reasons why a change was not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No space. Nothing was changed; the next change is tried again.
    #[error("the disk under {} is full: nothing was changed; make room and repeat the request", path.display())]
    DiskFull {
        /// The database.
        path: PathBuf,
    },
    /// An error after which nothing is written until a restart.
    #[error(
        "{} is read-only since an error: {why}. Calls go on; repair the disk and restart nearpath", path.display()
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
        /// Error of SQLite.
        why: String,
    },
}

/// Returns whether SQLite found no space for a change.
pub(super) fn is_disk_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

impl StoreError {
    /// Returns the error of a copy of the database, which says nothing about the database itself.
    pub(super) fn of_a_copy(self) -> Self {
        match self {
            Self::ReadOnly { path, why } => Self::Failed { path, why },
            other => other,
        }
    }

    pub(super) fn from_sqlite(path: &Path, error: &rusqlite::Error) -> Self {
        let path = path.to_owned();
        let why = error.to_string();
        match error.sqlite_error_code() {
            // The dropped transaction is rolled back, so the database stays consistent and the next
            // commit may succeed.
            Some(ErrorCode::DiskFull) => Self::DiskFull { path },
            Some(
                // After these the content of the disk is unknown, and a second fsync may report
                // success without writing anything.
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
