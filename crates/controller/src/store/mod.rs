//! The model on disk: one SQLite database, one process, one thread.
//!
//! A commit is on disk (write-ahead log, `synchronous=FULL`) when `ControllerStore::commit_changes`
//! returns. Every row has a checksum, because SQLite detects a damaged page but not a damaged
//! value. After a full disk the next commit is tried again. Any other I/O error ends writing until
//! a restart: after a failed fsync the content of the disk is unknown, and a second fsync may lie
//! ("fsyncgate").

mod data_dir;
mod disk_reserve;
mod error;
mod rows;
mod schema;
#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nearpath_types::FunctionId;
use ring::rand::{SecureRandom, SystemRandom};
use rusqlite::Connection;

use crate::model::{AddressPrefix, ControllerModel, ModelChange, complete_addresses};

use disk_reserve::DiskReserve;
use error::is_disk_full;

pub use data_dir::DataDir;
pub use error::{StoreError, StoreOpenError};

/// File name of the database in the data directory.
pub const DATABASE_FILE: &str = "nearpath.db";

/// Size of the write-ahead log at which it is copied into the database without waiting for an idle
/// moment.
const CHECKPOINT_BYTES: u64 = 4 << 20;

/// The open database. Not shared: one thread owns it.
#[derive(Debug)]
pub(crate) struct ControllerStore {
    db: Connection,
    path: PathBuf,
    broken_reason: Option<String>,
    reserve: DiskReserve,
    // Keeps the lock until the database is closed: fields are dropped in this order.
    _data_dir: DataDir,
}

/// Reads the model of a database that no process uses, and checks all of it.
///
/// # Errors
/// When it is damaged, from a newer version or not readable.
pub(crate) fn read_database(path: &Path) -> Result<ControllerModel, StoreOpenError> {
    let db = schema::open_database(path)?;
    rows::load_model(&db, path)
}

/// Logs functions and declared callees without a virtual address, in one line.
pub(crate) fn log_without_address(functions: &[FunctionId]) {
    if let Some(first) = functions.first() {
        let count = functions.len();
        tracing::warn!(%first, count, "controller: no virtual address is free, functions are called over HTTP only");
    }
}

/// Random bits of a prefix for virtual addresses, from the kernel.
fn random_prefix() -> AddressPrefix {
    let mut bytes = [0; 5];
    // getrandom(2) returns up to 256 bytes whole, and waits only before the machine has entropy.
    SystemRandom::new()
        .fill(&mut bytes)
        .expect("the kernel has random bytes");
    AddressPrefix::from_random(bytes)
}

impl ControllerStore {
    /// Opens the database in `data_dir`, creating it if necessary, and reads the model.
    ///
    /// # Errors
    /// When the database cannot be created, is damaged or from a newer version.
    pub(crate) fn open(data_dir: DataDir) -> Result<(Self, ControllerModel), StoreOpenError> {
        let path = data_dir.path().join(DATABASE_FILE);
        let db = schema::open_database(&path)?;
        let mut model = rows::load_model(&db, &path)?;
        let mut store = Self {
            db,
            path,
            broken_reason: None,
            reserve: DiskReserve::fill(data_dir.path()),
            _data_dir: data_dir,
        };
        store.write_missing_addresses(&mut model);
        Ok((store, model))
    }

    /// Gives a new store its prefix, and names of an older version their addresses.
    fn write_missing_addresses(&mut self, model: &mut ControllerModel) {
        let decision = complete_addresses(model, random_prefix());
        if !decision.changes.is_empty()
            && let Err(error) = self.commit_changes(&decision.changes)
        {
            // Not fatal: calls over HTTP need no address, and a full disk is emptied through the API.
            tracing::warn!(%error, "store: virtual addresses not written, the next start tries again");
            return;
        }
        for change in decision.changes {
            model.apply_change(change);
        }
        log_without_address(&decision.without_address);
    }

    /// Writes changes, all or none. They are on disk when this returns `Ok`. After an error other
    /// than a full disk, they may or may not exist after a restart, and nothing more is written.
    pub(crate) fn commit_changes(&mut self, changes: &[ModelChange]) -> Result<(), StoreError> {
        if let Some(why) = &self.broken_reason {
            return Err(StoreError::ReadOnly {
                path: self.path.clone(),
                why: why.clone(),
            });
        }
        let mut result = self.write_changes(changes);
        // Else a full disk could never be emptied through the API.
        if result.as_ref().is_err_and(is_disk_full)
            && changes.iter().all(ModelChange::is_removal)
            && self.reserve.release()
        {
            result = self.write_changes(changes);
        }
        result.map_err(|error| self.classify_error(&error))?;
        // Under constant load no idle moment comes, and the log would grow without limit. A released
        // reserve is filled again from the space of the log, before others take it.
        if self.log_bytes() >= CHECKPOINT_BYTES || self.reserve.is_released() {
            self.checkpoint_log();
        }
        Ok(())
    }

    /// Returns a copy of the database as of the last commit. The file has no name, so it needs no
    /// removal.
    pub(crate) fn copy_database(&self) -> Result<File, StoreError> {
        let path = self.path.with_extension("db-copy");
        let copied = self.copy_to(&path);
        let _ = fs::remove_file(&path); // also what a failed copy or an earlier process left
        copied
    }

    fn copy_to(&self, path: &Path) -> Result<File, StoreError> {
        let io_error = |error: io::Error| match error.kind() {
            io::ErrorKind::StorageFull => StoreError::DiskFull {
                path: self.path.clone(),
            },
            _ => StoreError::Failed {
                path: path.to_owned(),
                why: error.to_string(),
            },
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let file = options.mode(0o600).open(path).map_err(io_error)?;
        // An empty file of that name is allowed (SQLite: VACUUM INTO), and this one is private. Other
        // programs cannot copy the database, because this one keeps it locked.
        let name = path
            .to_str()
            .ok_or_else(|| io_error(io::Error::other("the data directory's name is not UTF-8")))?;
        self.db
            .execute("VACUUM INTO ?1", [name])
            .map_err(|error| StoreError::from_sqlite(path, &error).of_a_copy())?;
        Ok(file)
    }

    /// Reason why nothing can be written until a restart.
    pub(crate) fn broken_reason(&self) -> Option<&str> {
        self.broken_reason.as_deref()
    }

    fn write_changes(&mut self, changes: &[ModelChange]) -> rusqlite::Result<()> {
        let transaction = self.db.transaction()?;
        for change in changes {
            rows::write_change(&transaction, change)?;
        }
        transaction.commit()
    }

    /// True when there is something to [copy](Self::checkpoint_log).
    pub(crate) fn needs_checkpoint(&self) -> bool {
        self.broken_reason.is_none() && self.log_bytes() > 0
    }

    /// Copies the log into the database and empties it. SQLite's own hook would swallow errors.
    /// Early, because SQLite takes a damaged log for a short one, while damage in the database is
    /// detected. On a full disk the log stays as it is and still contains everything.
    pub(crate) fn checkpoint_log(&mut self) {
        let copied = self
            .db
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        if let Err(error) = copied {
            let error = self.classify_error(&error);
            tracing::warn!(%error, "store: checkpoint of the log failed");
        }
        self.reserve.refill();
    }

    fn log_bytes(&self) -> u64 {
        std::fs::metadata(self.path.with_extension("db-wal")).map_or(0, |meta| meta.len())
    }

    fn classify_error(&mut self, error: &rusqlite::Error) -> StoreError {
        let classified = StoreError::from_sqlite(&self.path, error);
        if let StoreError::ReadOnly { why, .. } = &classified {
            tracing::error!(path = %self.path.display(), %why, "store: read-only until a restart");
            self.broken_reason = Some(why.clone());
        }
        classified
    }
}
