//! Makes a data directory of an archive.
//!
//! Everything is unpacked and checked beside its place. The database is moved to its name last, so
//! an interrupted restore leaves a directory without one, and can be repeated.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use tar::EntryType;

use super::{
    ARTIFACTS_DIR, CHECKSUMS_FILE, COMMENT_PREFIX, HashingReader, checksum_line, folder_line,
    link_line,
};
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

/// Folders between the draft and the top of a deployed folder: `artifacts/FUNCTION/REVISION`.
const REVISION_DEPTH: usize = 3;

/// Unpacks an archive and compares all entries with its checksums.
fn unpack_checked(archive: impl Read, draft: &Path) -> Result<(), RestoreError> {
    let mut tar = tar::Archive::new(archive);
    // The process may have a narrow umask, and instances run under other users.
    tar.set_preserve_permissions(true);
    let mut found = BTreeSet::new();
    for entry in tar.entries().map_err(bad_archive)? {
        let mut entry = entry.map_err(bad_archive)?;
        // Without the slash that may end the name of a folder.
        let name: PathBuf = entry.path().map_err(bad_archive)?.components().collect();
        check_name(&name)?;
        if name == Path::new(CHECKSUMS_FILE) {
            return compare_checksums(&mut entry, &found);
        }
        found.insert(unpack_entry(&mut entry, &name, draft)?);
    }
    Err(bad_archive(format!(
        "it ends without {CHECKSUMS_FILE}, so it is cut or was not made by `nearpath backup`"
    )))
}

/// Unpacks an entry; returns its line in the list of checksums.
fn unpack_entry(
    entry: &mut tar::Entry<'_, impl Read>,
    name: &Path,
    draft: &Path,
) -> Result<Vec<u8>, RestoreError> {
    let kind = entry.header().entry_type();
    let target = entry.link_name().map_err(bad_archive)?;
    let target = target.map(Cow::into_owned);
    match (kind, &target) {
        (EntryType::Regular | EntryType::Directory, None) => {}
        (EntryType::Symlink, Some(target)) if stays_inside(name, target) => {}
        (EntryType::Symlink, Some(target)) => {
            let (name, target) = (name.display(), target.display());
            return Err(bad_archive(format!("the link {name} leads to {target}")));
        }
        // A hard link, for example, would have the content of an entry that was checked before.
        _ => {
            let text = format!("{} is no file, folder or symbolic link", name.display());
            return Err(bad_archive(text));
        }
    }
    // Refuses to write through a link that leads out of the draft.
    if !entry.unpack_in(draft).map_err(bad_archive)? {
        return Err(bad_archive(format!("{} leads elsewhere", name.display())));
    }
    match target {
        Some(target) => Ok(link_line(name, &target)),
        None if kind == EntryType::Directory => Ok(folder_line(name)),
        None => hash_file(&draft.join(name), name),
    }
}

/// Returns whether a link stays in its deployed folder. An absolute one names a folder of the
/// instance's own system, such as `/usr`; the node checked it when it copied the folder.
fn stays_inside(name: &Path, target: &Path) -> bool {
    let Some(mut depth) = name.components().count().checked_sub(REVISION_DEPTH + 1) else {
        return false;
    };
    let is_parent = |part| part == Component::ParentDir;
    if target.is_absolute() {
        return !target.components().any(is_parent);
    }
    target.components().all(|part| match part {
        Component::ParentDir => depth.checked_sub(1).map(|up| depth = up).is_some(),
        Component::Normal(_) => {
            depth += 1;
            true
        }
        _ => true,
    })
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
    let is_comment = |line: &[u8]| line.starts_with(COMMENT_PREFIX);
    // Older backups list only files.
    let has_comments = listed.iter().any(|line| is_comment(line));
    let found = found.iter().map(Vec::as_slice);
    let found: BTreeSet<_> = found
        .filter(|line| has_comments || !is_comment(line))
        .collect();
    match listed.symmetric_difference(&found).next() {
        None => Ok(()),
        Some(line) => Err(bad_archive(format!(
            "an entry differs from the list of checksums or is missing: {}",
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
