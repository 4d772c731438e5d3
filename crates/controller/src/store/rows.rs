//! Mapping between changes and rows. A row is a key, a body and a CRC-32 of table, key and body.

use std::path::Path;

use rusqlite::Connection;

use super::error::StoreOpenError;
use crate::model::{ControllerModel, ModelChange, SecretValue};

// The order does not matter to the result. With the prefix first and functions before addresses, each
// entry is made once, and names share their texts.
const TABLES: [&str; 7] = [
    "network",
    "counter",
    "namespace",
    "secret",
    "function",
    "node",
    "address",
];

/// Keys of rows in table `counter`.
const REVISION_KEY: &str = "revision";
const LAST_ADDRESS_KEY: &str = "last_address";
/// Key of the row in table `network`.
const PREFIX_KEY: &str = "ipv6_prefix";

/// Writes one change.
pub(super) fn write_change(db: &Connection, change: &ModelChange) -> rusqlite::Result<()> {
    match change {
        ModelChange::PutFunction(function) => put_row(
            db,
            "function",
            &function.spec.id().to_string(),
            &to_json(function),
        ),
        ModelChange::DropFunction(id) => delete_row(db, "function", &id.to_string()),
        ModelChange::PutSecret(id, value) => put_row(db, "secret", &id.to_string(), &value.0),
        ModelChange::DropSecret(id) => delete_row(db, "secret", &id.to_string()),
        ModelChange::PutNamespace(name, entry) => {
            put_row(db, "namespace", name.as_str(), &to_json(entry))
        }
        ModelChange::DropNamespace(name) => delete_row(db, "namespace", name.as_str()),
        ModelChange::PutNode(name, address) => {
            put_row(db, "node", name.as_str(), address.as_bytes())
        }
        ModelChange::DropNode(name) => delete_row(db, "node", name.as_str()),
        ModelChange::PutAddress(id, number) => {
            put_row(db, "address", &id.to_string(), &to_json(number))
        }
        ModelChange::DropAddress(id) => delete_row(db, "address", &id.to_string()),
        ModelChange::Revision(revision) => put_row(db, "counter", REVISION_KEY, &to_json(revision)),
        ModelChange::LastAddress(number) => {
            put_row(db, "counter", LAST_ADDRESS_KEY, &to_json(number))
        }
        ModelChange::AddressPrefix(prefix) => put_row(db, "network", PREFIX_KEY, &to_json(prefix)),
    }
}

/// Reads the whole model. The first invalid row is named, and the database refused: starting with
/// less than was acknowledged would remove functions from the node.
pub(super) fn load_model(db: &Connection, path: &Path) -> Result<ControllerModel, StoreOpenError> {
    let open_error = |error| StoreOpenError::from_sqlite(path, error);
    let mut model = ControllerModel::default();
    for table in TABLES {
        let mut statement = db
            .prepare(&format!("SELECT key, body, sum FROM {table}"))
            .map_err(open_error)?;
        let mut rows = statement.query([]).map_err(open_error)?;
        while let Some(row) = rows.next().map_err(open_error)? {
            let key: String = row.get(0).map_err(open_error)?;
            let (body, sum): (Vec<u8>, u32) = (
                row.get(1).map_err(open_error)?,
                row.get(2).map_err(open_error)?,
            );
            let damaged_row = |why| StoreOpenError::Damaged {
                path: path.to_owned(),
                what: format!("row {key:?} of table {table}: {why}"),
            };
            if row_checksum(table, &key, &body) != sum {
                return Err(damaged_row("its checksum does not match".to_owned()));
            }
            // Through the same changes that were written: the model has no second way to read a
            // row.
            model.apply_change(change_from_row(table, &key, &body).map_err(damaged_row)?);
        }
    }
    Ok(model)
}

fn change_from_row(table: &str, key: &str, body: &[u8]) -> Result<ModelChange, String> {
    match table {
        "function" => Ok(ModelChange::PutFunction(from_json(body)?)),
        "secret" => Ok(ModelChange::PutSecret(
            key.parse()?,
            SecretValue(body.into()),
        )),
        "namespace" => Ok(ModelChange::PutNamespace(
            key.parse().map_err(|e| format!("{e}"))?,
            from_json(body)?,
        )),
        "node" => Ok(ModelChange::PutNode(
            key.parse().map_err(|e| format!("{e}"))?,
            String::from_utf8(body.to_vec()).map_err(|e| e.to_string())?,
        )),
        "address" => Ok(ModelChange::PutAddress(
            key.parse().map_err(|e| format!("{e}"))?,
            from_json(body)?,
        )),
        "network" if key == PREFIX_KEY => from_json(body).map(ModelChange::AddressPrefix),
        "counter" if key == LAST_ADDRESS_KEY => from_json(body).map(ModelChange::LastAddress),
        "counter" if key == REVISION_KEY => from_json(body).map(ModelChange::Revision),
        _ => Err("its key is unknown".to_owned()),
    }
}

fn put_row(db: &Connection, table: &str, key: &str, body: &[u8]) -> rusqlite::Result<()> {
    let sql = format!("INSERT OR REPLACE INTO {table} (key, body, sum) VALUES (?1, ?2, ?3)");
    db.prepare_cached(&sql)?
        .execute((key, body, row_checksum(table, key, body)))
        .map(drop)
}

fn delete_row(db: &Connection, table: &str, key: &str) -> rusqlite::Result<()> {
    db.prepare_cached(&format!("DELETE FROM {table} WHERE key = ?1"))?
        .execute([key])
        .map(drop)
}

fn row_checksum(table: &str, key: &str, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    // Table and key are part of the sum: a row that damage moved to another key is detected too.
    for part in [table.as_bytes(), b"\0", key.as_bytes(), b"\0", body] {
        hasher.update(part);
    }
    hasher.finalize()
}

fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value)
        .expect("maps with text keys, numbers and texts can always be written as JSON")
}

fn from_json<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| error.to_string())
}
