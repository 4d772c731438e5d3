//! Makes a data directory of an archive.
//!
//! Everything is unpacked and checked beside its place. The database is moved to its name last, so
//! an interrupted restore leaves a directory without one, and can be repeated.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use super::{ARTIFACTS_DIR, CHECKSUMS_FILE, HashingReader, checksum_line};
use crate::ControllerModel;
use crate::store::{DATABASE_FILE, DataDir, StoreOpenError, read_database};

/// Folder of a restore that goes on.
const DRAFT_DIR: &str = "restore-draft";

/// Content of a restored data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreSummary {
    /// Number of functions.
    pub functions: usize,
    /// Number of secrets.
    pub secrets: usize,
    /// Functions without a copy of their folder in the backup: they need the folder that their
    /// deployment names.
    pub without_folder: Vec<String>,
}

/// Reasons why nothing was restored. The data directory has no database then.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Somebody's state would be overwritten.
    #[error(
        "{} exists: nothing was changed. Name an empty --data-dir, or move the old directory away", .0.display()
    )]
    HasDatabase(PathBuf),
    /// The archive ends early, or is no archive of nearpath.
    #[error(
        "the backup cannot be restored: {0}. Nothing was restored; take another copy of the file"
    )]
    BadArchive(String),
    /// The archive cannot be read, or the disk not written.
    #[error("{}: {error}. Nothing was restored", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The directory is in use, or the database in the archive is damaged.
    #[error(transparent)]
    Store(#[from] StoreOpenError),
}

/// Restores an archive into a data directory that has no database yet; creates the directory.
///
/// # Errors
/// See [`RestoreError`]: nothing is restored then, and the call can be repeated.
pub fn restore_backup(archive: impl Read, data_dir: &Path) -> Result<RestoreSummary, RestoreError> {
    let claimed = DataDir::claim(data_dir)?;
    let database = claimed.path().join(DATABASE_FILE);
    if database.exists() {
        return Err(RestoreError::HasDatabase(database));
    }
    let draft = claimed.path().join(DRAFT_DIR);
    let result = restore_through(archive, &draft, claimed.path());
    // Of a failed restore, too: what it holds is incomplete. The next one removes what stays.
    let _ = fs::remove_dir_all(&draft);
    result
}

fn restore_through(
    archive: impl Read,
    draft: &Path,
    data_dir: &Path,
) -> Result<RestoreSummary, RestoreError> {
    remove_folder(draft)?;
    DirBuilder::new()
        .mode(0o700)
        .create(draft)
        .map_err(io_error(draft))?;
    unpack_checked(archive, draft)?;
    let model = read_database(&draft.join(DATABASE_FILE))?;
    let summary = summarize(&model, &draft.join(ARTIFACTS_DIR));
    publish_draft(draft, data_dir)?;
    Ok(summary)
}

/// Unpacks an archive and compares all files with its checksums.
fn unpack_checked(archive: impl Read, draft: &Path) -> Result<(), RestoreError> {
    let mut tar = tar::Archive::new(archive);
    // The process may have a narrow umask, and instances run under other users.
    tar.set_preserve_permissions(true);
    let mut found = BTreeSet::new();
    for entry in tar.entries().map_err(bad_archive)? {
        let mut entry = entry.map_err(bad_archive)?;
        let name = entry.path().map_err(bad_archive)?.into_owned();
        check_name(&name)?;
        if name == Path::new(CHECKSUMS_FILE) {
            return compare_checksums(&mut entry, &found);
        }
        // Refuses names and links that lead out of the draft.
        let unpacked = entry.unpack_in(draft).map_err(bad_archive)?;
        if !unpacked {
            return Err(bad_archive(format!("{} leads elsewhere", name.display())));
        }
        if entry.header().entry_type().is_file() {
            found.insert(hash_file(&draft.join(&name), &name)?);
        }
    }
    Err(bad_archive(format!(
        "it ends without {CHECKSUMS_FILE}, so it is cut or was not made by `nearpath backup`"
    )))
}

/// Refuses what a backup does not hold: an archive of other things must not fill the directory.
fn check_name(name: &Path) -> Result<(), RestoreError> {
    let parts: Vec<_> = name.components().collect();
    let is_plain = parts
        .iter()
        .all(|part| matches!(part, Component::Normal(_)));
    let is_known = match parts.as_slice() {
        [Component::Normal(first)] => *first == DATABASE_FILE || *first == CHECKSUMS_FILE,
        [Component::Normal(first), ..] => *first == ARTIFACTS_DIR,
        _ => false,
    };
    match is_plain && is_known {
        true => Ok(()),
        false => Err(bad_archive(format!(
            "{} is no part of a backup of nearpath",
            name.display()
        ))),
    }
}

fn hash_file(path: &Path, name: &Path) -> Result<Vec<u8>, RestoreError> {
    let mut file = HashingReader::new(File::open(path).map_err(io_error(path))?);
    io::copy(&mut file, &mut io::sink()).map_err(io_error(path))?;
    Ok(checksum_line(name, &file.finish()))
}

fn compare_checksums(
    listed: &mut impl Read,
    found: &BTreeSet<Vec<u8>>,
) -> Result<(), RestoreError> {
    let mut text = Vec::new();
    listed.read_to_end(&mut text).map_err(bad_archive)?;
    let listed: BTreeSet<_> = text.split_inclusive(|byte| *byte == b'\n').collect();
    let found: BTreeSet<_> = found.iter().map(Vec::as_slice).collect();
    match listed.symmetric_difference(&found).next() {
        None => Ok(()),
        Some(line) => Err(bad_archive(format!(
            "a file differs from its checksum or is missing: {}",
            String::from_utf8_lossy(line).trim_end()
        ))),
    }
}

fn summarize(model: &ControllerModel, artifacts: &Path) -> RestoreSummary {
    let without_folder = model
        .functions
        .iter()
        .filter(|(id, function)| {
            !artifacts
                .join(id.to_string())
                .join(function.revision.to_string())
                .is_dir()
        })
        .map(|(id, _)| id.to_string());
    RestoreSummary {
        functions: model.functions.len(),
        secrets: model.secrets.len(),
        without_folder: without_folder.collect(),
    }
}

/// Moves a complete draft to its place.
fn publish_draft(draft: &Path, data_dir: &Path) -> Result<(), RestoreError> {
    let artifacts = data_dir.join(ARTIFACTS_DIR);
    // Without a database they belong to nothing.
    remove_folder(&artifacts)?;
    if draft.join(ARTIFACTS_DIR).exists() {
        fs::rename(draft.join(ARTIFACTS_DIR), &artifacts).map_err(io_error(&artifacts))?;
    }
    sync_file_system(data_dir)?;
    let database = data_dir.join(DATABASE_FILE);
    fs::rename(draft.join(DATABASE_FILE), &database).map_err(io_error(&database))?;
    sync_file_system(data_dir)
}

fn sync_file_system(folder: &Path) -> Result<(), RestoreError> {
    // One call for everything: there may be 100,000 files.
    File::open(folder)
        .and_then(|folder| Ok(rustix::fs::syncfs(folder)?))
        .map_err(io_error(folder))
}

fn remove_folder(path: &Path) -> Result<(), RestoreError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error(path)(error)),
        _ => Ok(()),
    }
}

fn bad_archive(why: impl ToString) -> RestoreError {
    RestoreError::BadArchive(why.to_string())
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> RestoreError + use<> {
    let path = path.to_owned();
    move |error| RestoreError::Io { path, error }
}
