//! The model on disk: one SQLite database, one process, one thread.
//!
//! A commit is on disk (write-ahead log, `synchronous=FULL`) when `Store::commit` returns. Every row carries a
//! checksum, because SQLite notices a damaged page but not a damaged value. A full disk is an answer, and the next
//! commit is tried anew; any other I/O error ends writing until a restart, since after a failed fsync nobody knows what
//! is on disk and a second fsync may lie ("fsyncgate").

mod error;
mod lock;
mod rows;
mod schema;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use rusqlite::Connection;

use crate::model::{Change, Model};

pub use error::{OpenError, StoreError};
pub use lock::DataDir;

/// The database's name in the data directory.
pub const DATABASE: &str = "nearpath.db";

/// Size of the write-ahead log at which it is copied into the database without waiting for a quiet moment.
const CHECKPOINT_BYTES: u64 = 4 << 20;

/// The open database. Not shared: one thread owns it.
#[derive(Debug)]
pub(crate) struct Store {
    db: Connection,
    path: PathBuf,
    broken: Option<String>,
    _folder: DataDir,
}

impl Store {
    /// Opens the database in `folder`, creating it if need be, and reads the model.
    ///
    /// # Errors
    /// When the database cannot be created, is damaged or from a newer version.
    pub(crate) fn open(folder: DataDir) -> Result<(Self, Model), OpenError> {
        let path = folder.path().join(DATABASE);
        let db = schema::open(&path)?;
        let model = rows::load(&db, &path)?;
        Ok((Self { db, path, broken: None, _folder: folder }, model))
    }

    /// Writes changes, all or none. They are on disk when this returns `Ok`. After an error other than a full disk,
    /// what was asked for may or may not be there after a restart, and nothing more is written.
    pub(crate) fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        if let Some(why) = &self.broken {
            return Err(StoreError::ReadOnly { path: self.path.clone(), why: why.clone() });
        }
        let written = self.write(changes);
        written.map_err(|error| self.judge(&error))?;
        if self.log_bytes() >= CHECKPOINT_BYTES {
            self.tidy();
        }
        Ok(())
    }

    /// Why nothing can be written until a restart.
    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    fn write(&mut self, changes: &[Change]) -> rusqlite::Result<()> {
        let transaction = self.db.transaction()?;
        for change in changes {
            rows::write(&transaction, change)?;
        }
        transaction.commit()
    }

    /// Whether there is something to [`tidy`](Self::tidy).
    pub(crate) fn is_untidy(&self) -> bool {
        self.broken.is_none() && self.log_bytes() > 0
    }

    /// Copies the log into the database and empties it. Done here and not by SQLite's own hook, which swallows errors;
    /// done early, since SQLite takes a damaged log for a short one, while damage in the database is seen. On a full
    /// disk the log stays as it is and still holds everything.
    pub(crate) fn tidy(&mut self) {
        if let Err(error) = self.db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())) {
            let error = self.judge(&error);
            tracing::warn!(%error, "store: the log could not be copied into the database");
        }
    }

    fn log_bytes(&self) -> u64 {
        std::fs::metadata(self.path.with_extension("db-wal")).map_or(0, |meta| meta.len())
    }

    fn judge(&mut self, error: &rusqlite::Error) -> StoreError {
        let judged = StoreError::judge(&self.path, error);
        if let StoreError::ReadOnly { why, .. } = &judged {
            tracing::error!(path = %self.path.display(), %why, "store: no changes are taken until a restart");
            self.broken = Some(why.clone());
        }
        judged
    }
}
