//! Settings of the database, its schema, and migrations from older schemas.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::error::StoreOpenError;

/// `npth`: distinguishes nearpath's database from other SQLite files (PRAGMA application_id).
const APPLICATION_ID: i64 = 0x6e70_7468;

/// Migration N leads from schema N to N+1. Released migrations are never edited; a change is a new
/// migration.
const MIGRATIONS: &[&str] = &["
    CREATE TABLE function  (key TEXT PRIMARY KEY, body BLOB NOT NULL, sum INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE secret    (key TEXT PRIMARY KEY, body BLOB NOT NULL, sum INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE namespace (key TEXT PRIMARY KEY, body BLOB NOT NULL, sum INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE counter   (key TEXT PRIMARY KEY, body BLOB NOT NULL, sum INTEGER NOT NULL) STRICT, WITHOUT ROWID;
",
"
    CREATE TABLE node      (key TEXT PRIMARY KEY, body BLOB NOT NULL, sum INTEGER NOT NULL) STRICT, WITHOUT ROWID;
",
"
    CREATE TABLE network   (key TEXT PRIMARY KEY, body BLOB NOT NULL, sum INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE address   (key TEXT PRIMARY KEY, body BLOB NOT NULL, sum INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"];

/// Opens, checks and, where necessary, migrates the database.
pub(super) fn open_database(path: &Path) -> Result<Connection, StoreOpenError> {
    let open_error = |error| StoreOpenError::from_sqlite(path, error);
    if !path.exists() {
        create_database(path)?;
    }
    let mut db = connect_exclusively(path).map_err(open_error)?;
    let version = schema_version(&db, path)?;
    // Before anything is written: a damaged database stays as it was found.
    check_integrity(&db, path)?;
    apply_settings(&db).map_err(open_error)?;
    migrate_schema(&mut db, version).map_err(open_error)?;
    Ok(db)
}

/// Creates the database under a temporary name and renames it when it is complete. So an empty
/// database is a damaged one, and not taken for a new one.
fn create_database(path: &Path) -> Result<(), StoreOpenError> {
    let temporary = path.with_extension("db-new");
    let folder_error = |source| StoreOpenError::UnusableFolder {
        path: temporary.clone(),
        source,
    };
    let _ = fs::remove_file(path.with_extension("db-new-journal")); // left by an interrupted start
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(folder_error)?;
    let mut db = connect_exclusively(&temporary)
        .map_err(|error| StoreOpenError::from_sqlite(path, error))?;
    migrate_schema(&mut db, 0).map_err(|error| StoreOpenError::from_sqlite(path, error))?;
    db.close()
        .map_err(|(_, error)| StoreOpenError::from_sqlite(path, error))?;
    // After the close: the name must never refer to a half-written database.
    fs::rename(&temporary, path).map_err(folder_error)?;
    // The rename is durable only when the folder is synced (fsync(2)).
    let folder = path.parent().unwrap_or(Path::new("."));
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(folder_error)
}

fn connect_exclusively(path: &Path) -> rusqlite::Result<Connection> {
    let db = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    // Before the first access to the log: later, SQLite has already created the shared-memory file.
    db.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    Ok(db)
}

/// Applies the settings. Exclusive locking keeps the log's index in memory instead of in a mapped
/// file, which a full disk could break, and keeps other programs out. Checkpoints are made by
/// [`super::ControllerStore`].
fn apply_settings(db: &Connection) -> rusqlite::Result<()> {
    let mode: String = db.query_row("PRAGMA journal_mode=WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        tracing::warn!(%mode, "store: no write-ahead log on this file system");
    }
    // FULL syncs the log at every commit; NORMAL could lose acknowledged changes in a power
    // failure.
    db.pragma_update(None, "synchronous", "FULL")?;
    db.pragma_update(None, "wal_autocheckpoint", 0)?;
    db.pragma_update(None, "cell_size_check", true)
}

fn schema_version(db: &Connection, path: &Path) -> Result<i64, StoreOpenError> {
    let pragma = |name| db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let open_error = |error| StoreOpenError::from_sqlite(path, error);
    let version = pragma("user_version").map_err(open_error)?;
    let newest = MIGRATIONS.len() as i64;
    let tables: i64 = db
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(open_error)?;
    match pragma("application_id").map_err(open_error)? {
        // SQLite opens a file of 0 bytes as an empty database without an error.
        0 if version == 0 && tables == 0 => Err(StoreOpenError::Damaged {
            path: path.to_owned(),
            what: "it is empty".to_owned(),
        }),
        APPLICATION_ID if version > newest => Err(StoreOpenError::NewerSchema {
            path: path.to_owned(),
            found: version,
            known: newest,
        }),
        APPLICATION_ID => Ok(version),
        _ => Err(StoreOpenError::NotNearpath {
            path: path.to_owned(),
        }),
    }
}

fn check_integrity(db: &Connection, path: &Path) -> Result<(), StoreOpenError> {
    let result: String = db
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(|e| StoreOpenError::from_sqlite(path, e))?;
    match result.as_str() {
        "ok" => Ok(()),
        what => Err(StoreOpenError::Damaged {
            path: path.to_owned(),
            what: what.to_owned(),
        }),
    }
}

fn migrate_schema(db: &mut Connection, from: i64) -> rusqlite::Result<()> {
    for (number, migration) in MIGRATIONS.iter().enumerate().skip(from as usize) {
        let transaction = db.transaction()?;
        transaction.execute_batch(migration)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        // In the same transaction as the step: a crash leaves the old or the new schema, never half
        // of one.
        transaction.pragma_update(None, "user_version", number as i64 + 1)?;
        transaction.commit()?;
        tracing::info!(schema = number + 1, "store: schema migrated");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_can_be_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        for _ in 0..2 {
            let db = open_database(&path).unwrap();
            assert_eq!(schema_version(&db, &path).unwrap(), MIGRATIONS.len() as i64);
        }
    }

    #[test]
    fn a_newer_foreign_or_empty_database_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let newer = folder.path().join("x.db");
        open_database(&newer)
            .unwrap()
            .pragma_update(None, "user_version", 99)
            .unwrap();
        assert!(matches!(
            open_database(&newer),
            Err(StoreOpenError::NewerSchema { found: 99, .. })
        ));

        let foreign = folder.path().join("y.db");
        Connection::open(&foreign)
            .unwrap()
            .execute_batch("CREATE TABLE cakes (name TEXT)")
            .unwrap();
        assert!(matches!(
            open_database(&foreign),
            Err(StoreOpenError::NotNearpath { .. })
        ));

        let empty = folder.path().join("z.db");
        File::create(&empty).unwrap();
        assert!(matches!(
            open_database(&empty),
            Err(StoreOpenError::Damaged { .. })
        ));
    }
}
