//! The database's settings, its schema, and the way from older schemas to the present one.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::error::OpenError;

/// `npth`: tells nearpath's database from any other SQLite file.
const APPLICATION: i64 = 0x6e70_7468;

/// Step N brings schema N to N+1. Steps are never edited once released; a change is a new step.
const STEPS: &[&str] = &["
    CREATE TABLE function  (key TEXT PRIMARY KEY, body BLOB NOT NULL, sum INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE secret    (key TEXT PRIMARY KEY, body BLOB NOT NULL, sum INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE namespace (key TEXT PRIMARY KEY, body BLOB NOT NULL, sum INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE counter   (key TEXT PRIMARY KEY, body BLOB NOT NULL, sum INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"];

/// Opens, checks and, where needed, migrates the database.
pub(super) fn open(path: &Path) -> Result<Connection, OpenError> {
    let failed = |error| OpenError::judge(path, error);
    if !path.exists() {
        create(path)?;
    }
    let mut db = connect(path).map_err(failed)?;
    let version = version(&db, path)?;
    check(&db, path)?;
    settings(&db).map_err(failed)?;
    migrate(&mut db, version).map_err(failed)?;
    Ok(db)
}

/// Makes the database beside its place and moves it there when it is whole: so one that is empty has been damaged, and
/// is not taken for a new one.
fn create(path: &Path) -> Result<(), OpenError> {
    let draft = path.with_extension("db-new");
    let refused = |source| OpenError::Folder { path: draft.clone(), source };
    let _ = fs::remove_file(path.with_extension("db-new-journal")); // of a start that was cut off
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft).map_err(refused)?;
    let mut db = connect(&draft).map_err(|error| OpenError::judge(path, error))?;
    migrate(&mut db, 0).map_err(|error| OpenError::judge(path, error))?;
    db.close().map_err(|(_, error)| OpenError::judge(path, error))?;
    fs::rename(&draft, path).map_err(refused)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(refused)
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    db.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    Ok(db)
}

/// Exclusive locking keeps the log's index in memory instead of in a mapped file (one file less that a full disk can
/// break) and keeps every other program out. Checkpoints are the store's own, see [`super::Store`].
fn settings(db: &Connection) -> rusqlite::Result<()> {
    let mode: String = db.query_row("PRAGMA journal_mode=WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        tracing::warn!(%mode, "store: no write-ahead log on this file system");
    }
    db.pragma_update(None, "synchronous", "FULL")?;
    db.pragma_update(None, "wal_autocheckpoint", 0)?;
    db.pragma_update(None, "cell_size_check", true)
}

fn version(db: &Connection, path: &Path) -> Result<i64, OpenError> {
    let pragma = |name| db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let failed = |error| OpenError::judge(path, error);
    let version = pragma("user_version").map_err(failed)?;
    let known = STEPS.len() as i64;
    let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(failed)?;
    match pragma("application_id").map_err(failed)? {
        0 if version == 0 && tables == 0 => {
            Err(OpenError::Damaged { path: path.to_owned(), what: "it is empty".to_owned() })
        }
        APPLICATION if version > known => Err(OpenError::Newer { path: path.to_owned(), found: version, known }),
        APPLICATION => Ok(version),
        _ => Err(OpenError::Foreign { path: path.to_owned() }),
    }
}

fn check(db: &Connection, path: &Path) -> Result<(), OpenError> {
    let verdict: String =
        db.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(|e| OpenError::judge(path, e))?;
    match verdict.as_str() {
        "ok" => Ok(()),
        what => Err(OpenError::Damaged { path: path.to_owned(), what: what.to_owned() }),
    }
}

fn migrate(db: &mut Connection, from: i64) -> rusqlite::Result<()> {
    for (number, step) in STEPS.iter().enumerate().skip(from as usize) {
        let transaction = db.transaction()?;
        transaction.execute_batch(step)?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", number as i64 + 1)?;
        transaction.commit()?;
        tracing::info!(schema = number + 1, "store: schema brought forward");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opened_twice_it_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        for _ in 0..2 {
            let db = open(&path).unwrap();
            assert_eq!(version(&db, &path).unwrap(), STEPS.len() as i64);
        }
    }

    #[test]
    fn a_newer_foreign_or_empty_database_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let newer = folder.path().join("x.db");
        open(&newer).unwrap().pragma_update(None, "user_version", 99).unwrap();
        assert!(matches!(open(&newer), Err(OpenError::Newer { found: 99, .. })));

        let foreign = folder.path().join("y.db");
        Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE cakes (name TEXT)").unwrap();
        assert!(matches!(open(&foreign), Err(OpenError::Foreign { .. })));

        let empty = folder.path().join("z.db");
        File::create(&empty).unwrap();
        assert!(matches!(open(&empty), Err(OpenError::Damaged { .. })));
    }
}
