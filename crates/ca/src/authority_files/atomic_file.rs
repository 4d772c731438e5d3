//! Files that are complete when they appear under their name.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::AuthorityFilesError;

/// Writes a file with this mode. After a crash, the old or the new contents are there.
pub(super) fn write_atomically(
    path: &Path,
    contents: &[u8],
    mode: u32,
) -> Result<(), AuthorityFilesError> {
    replace(path, contents, mode).map_err(|source| AuthorityFilesError::io("write", path, source))
}

fn replace(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    // The mode is set when the file is created: there is no moment when others can open a key.
    let mut draft = tempfile::Builder::new()
        .prefix(".nearpath-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder)?;
    draft.write_all(contents)?;
    draft.as_file().sync_all()?;
    draft.persist(path)?;
    // The rename itself must survive a crash too.
    File::open(folder)?.sync_all()
}
