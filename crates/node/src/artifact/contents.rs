//! Equal files of all copies are one file: each program is on the disk and in memory once,
//! whatever the number of its functions and revisions.
//!
//! A file of a copy is a hard link to `contents/SHA256`. The content of a file never changes after
//! its first link. Sharing saves space only: where a link fails, the copy keeps a file of its own.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ring::digest::{Context, Digest, SHA256};

/// Bytes that are read at once.
pub(super) const COPY_BUFFER: usize = 128 * 1024;

/// The contents of all copies, by digest and permission to execute.
#[derive(Debug)]
pub(super) struct ContentStore {
    folder: PathBuf,
}

impl ContentStore {
    /// Opens the contents below `folder` and removes those that no copy uses.
    ///
    /// # Errors
    /// Fails when the folder cannot be created or read.
    pub(super) fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        let store = Self { folder };
        // Also for safety: what an interrupted run did not flush may be torn, and only its copies,
        // which are removed before, use it.
        store.remove_unused()?;
        Ok(store)
    }

    /// Makes `file` the equal file of earlier copies, or the one that later copies share. It is
    /// complete and has its final mode. `spare` is an unused name in the same file system.
    pub(super) fn share_file(
        &self,
        file: &Path,
        spare: &Path,
        digest: &Digest,
        is_executable: bool,
    ) {
        let content = self.folder.join(content_name(digest, is_executable));
        let shared = match fs::hard_link(file, &content) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::hard_link(&content, spare).and_then(|()| fs::rename(spare, file))
            }
            first => first,
        };
        if let Err(error) = shared {
            // For example too many links: the next copy of this content is a file of its own, too.
            tracing::debug!(file = %file.display(), %error, "a file of a copy is not shared");
        }
    }

    /// Removes contents that no copy uses.
    ///
    /// # Errors
    /// Fails when the folder cannot be read.
    pub(super) fn remove_unused(&self) -> io::Result<()> {
        for content in fs::read_dir(&self.folder)? {
            let content = content?;
            // A copy that links it just now keeps its link: only later copies do not find it.
            if content.metadata()?.nlink() == 1 {
                fs::remove_file(content.path())?;
            }
        }
        Ok(())
    }
}

/// Copies everything; returns the number of bytes and their digest.
pub(super) fn copy_bytes(
    mut from: impl Read,
    to: &mut File,
    buffer: &mut [u8],
) -> io::Result<(u64, Digest)> {
    let (mut copied, mut hash) = (0, Context::new(&SHA256));
    loop {
        let n = match from.read(buffer) {
            Ok(0) => return Ok((copied, hash.finish())),
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hash.update(&buffer[..n]);
        to.write_all(&buffer[..n])?;
        copied += n as u64;
    }
}

/// Returns the name of a content: mode and bytes are the same for all its links.
fn content_name(digest: &Digest, is_executable: bool) -> String {
    let suffix = if is_executable { ".x" } else { "" };
    let hex = digest.as_ref().iter().map(|byte| format!("{byte:02x}"));
    hex.chain([suffix.to_owned()]).collect()
}
