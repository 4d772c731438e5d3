//! Equal files of the copies in a namespace are one file: each program is on the disk and in memory
//! once, whatever the number of its functions and revisions.
//!
//! A file of a copy is a hard link to `contents/NAMESPACE.SHA256`. Functions cannot change it: their
//! sandbox shows it read-only. Namespaces share nothing, because the count of links and the page
//! cache would tell them of each other's files. Where a link fails, the copy keeps its own file.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ring::digest::{Context, Digest, SHA256};

/// Bytes that are read at once. On the stack: most folders are small, and a new thread would get a whole
/// memory page of the allocator, zeroed, for a larger buffer on its heap.
const COPY_BUFFER: usize = 32 * 1024;

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
        // Contents of an interrupted run may be torn. Its unflushed copies are gone, so no link is
        // left.
        store.remove_unused()?;
        Ok(store)
    }

    /// Replaces a file by the equal one of an earlier copy, or keeps it for later copies.
    ///
    /// The file is complete and has its final mode. `spare` is an unused name in its file system.
    pub(super) fn share_file(&self, file: &Path, spare: &Path, name: &ContentName<'_>) {
        let content = self.folder.join(name.to_string());
        let shared = match fs::hard_link(file, &content) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                replace_by_link(&content, spare, file)
            }
            first => first,
        };
        if let Err(error) = shared {
            // For example too many links.
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
            let removed = content.metadata().and_then(|file| match file.nlink() {
                // A copy that links the content at this moment keeps its link.
                1 => fs::remove_file(content.path()),
                _ => Ok(()),
            });
            match removed {
                // The process before this one removes unused contents, too.
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns whether a content has no names outside of a copy: without the copy it is unused, and
/// [`ContentStore::remove_unused`] is worth a look at all contents.
///
/// # Errors
/// Fails when a folder cannot be read.
pub(super) fn has_last_names(copy: &Path) -> io::Result<bool> {
    let mut files = HashMap::new();
    count_names(copy, &mut files)?;
    // One more name: that of the content.
    Ok(files.values().any(|(names, links)| names + 1 == *links))
}

/// Names in a folder, and links, by file.
type NameCounts = HashMap<u64, (u64, u64)>;

fn count_names(folder: &Path, files: &mut NameCounts) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let file = entry.metadata()?; // of a link itself, not of its target
        if file.is_dir() {
            count_names(&entry.path(), files)?;
        } else if file.is_file() {
            let (names, links) = files.entry(file.ino()).or_default();
            (*names, *links) = (*names + 1, file.nlink());
        }
    }
    Ok(())
}

/// Replaces `file` by a link to `content`, unless their lengths differ: then the disk is damaged, or
/// an operator changed the content.
fn replace_by_link(content: &Path, spare: &Path, file: &Path) -> io::Result<()> {
    if fs::metadata(content)?.len() != fs::metadata(file)?.len() {
        return Err(io::Error::other("the kept content has another length"));
    }
    fs::hard_link(content, spare)?;
    fs::rename(spare, file).inspect_err(|_| {
        // It would hold up every later link of this copy.
        let _ = fs::remove_file(spare);
    })
}

/// Name of a content: properties that all its links have in common.
pub(super) struct ContentName<'a> {
    pub(super) namespace: &'a str,
    pub(super) digest: &'a Digest,
    pub(super) is_executable: bool,
}

impl fmt::Display for ContentName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.", self.namespace)?;
        for byte in self.digest.as_ref() {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(if self.is_executable { ".x" } else { "" })
    }
}

/// Copies everything; returns the number of bytes and their digest.
pub(super) fn copy_bytes(mut from: impl Read, to: &mut File) -> io::Result<(u64, Digest)> {
    let mut buffer = [0; COPY_BUFFER];
    let (mut copied, mut hash) = (0, Context::new(&SHA256));
    loop {
        let n = match from.read(&mut buffer) {
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
