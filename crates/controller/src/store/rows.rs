//! Changes as rows and rows as changes. A row is a key, a body and a CRC-32 over table, key and body.

use std::path::Path;

use nearpath_types::Revision;
use rusqlite::Connection;

use super::error::OpenError;
use crate::model::{Change, Model, Secret};

const TABLES: [&str; 4] = ["counter", "namespace", "secret", "function"];

/// Writes one change.
pub(super) fn write(db: &Connection, change: &Change) -> rusqlite::Result<()> {
    match change {
        Change::PutFunction(function) => put(db, "function", &function.spec.id().to_string(), &json(function)),
        Change::DropFunction(id) => delete(db, "function", &id.to_string()),
        Change::PutSecret(id, value) => put(db, "secret", &id.to_string(), &value.0),
        Change::DropSecret(id) => delete(db, "secret", &id.to_string()),
        Change::PutNamespace(name, entry) => put(db, "namespace", name.as_str(), &json(entry)),
        Change::DropNamespace(name) => delete(db, "namespace", name.as_str()),
        Change::Revision(revision) => put(db, "counter", "revision", &json(revision)),
    }
}

/// Reads the whole model. A row that fails its checksum or cannot be understood is named, and the database refused:
/// starting with less than was acknowledged would remove functions from the node.
pub(super) fn load(db: &Connection, path: &Path) -> Result<Model, OpenError> {
    let failed = |error| OpenError::judge(path, error);
    let mut model = Model::default();
    for table in TABLES {
        let mut statement = db.prepare(&format!("SELECT key, body, sum FROM {table}")).map_err(failed)?;
        let mut rows = statement.query([]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let key: String = row.get(0).map_err(failed)?;
            let (body, sum): (Vec<u8>, u32) = (row.get(1).map_err(failed)?, row.get(2).map_err(failed)?);
            let damaged = |why| OpenError::Damaged {
                path: path.to_owned(),
                what: format!("row {key:?} of table {table}: {why}"),
            };
            if checksum(table, &key, &body) != sum {
                return Err(damaged("its checksum does not match".to_owned()));
            }
            model.apply(read(table, &key, &body).map_err(damaged)?);
        }
    }
    Ok(model)
}

fn read(table: &str, key: &str, body: &[u8]) -> Result<Change, String> {
    match table {
        "function" => Ok(Change::PutFunction(parse(body)?)),
        "secret" => Ok(Change::PutSecret(key.parse()?, Secret(body.into()))),
        "namespace" => Ok(Change::PutNamespace(key.parse().map_err(|e| format!("{e}"))?, parse(body)?)),
        _ => parse::<Revision>(body).map(Change::Revision),
    }
}

fn put(db: &Connection, table: &str, key: &str, body: &[u8]) -> rusqlite::Result<()> {
    let sql = format!("INSERT OR REPLACE INTO {table} (key, body, sum) VALUES (?1, ?2, ?3)");
    db.prepare_cached(&sql)?.execute((key, body, checksum(table, key, body))).map(drop)
}

fn delete(db: &Connection, table: &str, key: &str) -> rusqlite::Result<()> {
    db.prepare_cached(&format!("DELETE FROM {table} WHERE key = ?1"))?.execute([key]).map(drop)
}

fn checksum(table: &str, key: &str, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for part in [table.as_bytes(), b"\0", key.as_bytes(), b"\0", body] {
        hasher.update(part);
    }
    hasher.finalize()
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("maps with text keys, numbers and texts can always be written as JSON")
}

fn parse<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| error.to_string())
}
