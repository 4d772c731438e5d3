//! Digest of a handler's folder: equal contents give equal digests, whatever their times and inodes.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nearpath_controller::FolderDigest;
use ring::digest::{Context, SHA256};
use rustix::fs::OFlags;

use crate::scan::{FileStamp, stamp_tree};

/// Files of a folder: what the node copies at most, `nearpath_node::artifact::FolderLimit`.
const MAX_ENTRIES: usize = 100_000;
/// Bytes that are read at once.
const READ_BUFFER_BYTES: usize = 128 * 1024;
/// Permission bits to execute, for owner, group and others.
const EXECUTE_BITS: u32 = 0o111;

/// Digests of folders, computed again only when a folder's stamp has changed.
#[derive(Debug, Default)]
pub(crate) struct DigestCache(BTreeMap<PathBuf, (FileStamp, FolderDigest)>);

impl DigestCache {
    /// Returns the digest of a folder. Blocks.
    ///
    /// # Errors
    /// When something in it cannot be read, or it has more files than a node copies.
    pub(crate) fn digest_of(&mut self, folder: &Path) -> io::Result<FolderDigest> {
        // Before the reading: a change during it makes another stamp.
        let stamp = stamp_tree(folder);
        match self.0.get(folder) {
            Some((known, digest)) if *known == stamp => Ok(digest.clone()),
            _ => {
                let digest = digest_folder(folder)?;
                self.0.insert(folder.to_owned(), (stamp, digest.clone()));
                Ok(digest)
            }
        }
    }

    /// Forgets folders that no function uses.
    pub(crate) fn retain_folders(&mut self, is_used: impl Fn(&Path) -> bool) {
        self.0.retain(|folder, _| is_used(folder));
    }
}

fn digest_folder(folder: &Path) -> io::Result<FolderDigest> {
    let mut names = Vec::new();
    list_names(folder, Path::new(""), &mut names)?;
    // Folders list their entries in any order.
    names.sort();
    let (mut hash, mut buffer) = (Context::new(&SHA256), vec![0; READ_BUFFER_BYTES]);
    for name in &names {
        add_entry(&mut hash, folder, name, &mut buffer)
            .map_err(|error| with_path(&folder.join(name), &error))?;
    }
    let digest = hash.finish();
    let text: String = digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(FolderDigest(text.into()))
}

fn list_names(top: &Path, below: &Path, names: &mut Vec<PathBuf>) -> io::Result<()> {
    let folder = top.join(below);
    for entry in fs::read_dir(&folder).map_err(|error| with_path(&folder, &error))? {
        let entry = entry?;
        let name = below.join(entry.file_name());
        if names.len() == MAX_ENTRIES {
            return Err(io::Error::other(format!(
                "it holds more than {MAX_ENTRIES} files: remove what is not needed to run"
            )));
        }
        names.push(name.clone());
        // Of a link itself: links are not followed.
        if entry.file_type()?.is_dir() {
            list_names(top, &name, names)?;
        }
    }
    Ok(())
}

/// Adds kind, name and content of one entry, each with its length.
fn add_entry(hash: &mut Context, top: &Path, name: &Path, buffer: &mut [u8]) -> io::Result<()> {
    let path = top.join(name);
    let entry = fs::symlink_metadata(&path)?;
    let kind: &[u8] = match entry.file_type() {
        kind if kind.is_dir() => b"folder",
        kind if kind.is_symlink() => b"link",
        kind if kind.is_file() && entry.mode() & EXECUTE_BITS != 0 => b"program",
        kind if kind.is_file() => b"file",
        _ => b"special",
    };
    add_field(hash, kind);
    add_field(hash, name.as_os_str().as_bytes());
    if entry.is_symlink() {
        add_field(hash, fs::read_link(&path)?.as_os_str().as_bytes());
    } else if entry.is_file() {
        add_content(hash, &path, entry.len(), buffer)?;
    }
    Ok(())
}

fn add_field(hash: &mut Context, field: &[u8]) {
    hash.update(&(field.len() as u64).to_be_bytes());
    hash.update(field);
}

fn add_content(hash: &mut Context, path: &Path, length: u64, buffer: &mut [u8]) -> io::Result<()> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    // A pipe of the same name must not block.
    let mut file: File = options
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)?;
    hash.update(&length.to_be_bytes());
    loop {
        match file.read(buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => hash.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn digest_after(change: impl Fn(&Path)) -> FolderDigest {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        fs::write(folder.path().join("sub/file"), "content").unwrap();
        fs::write(folder.path().join("other"), "more").unwrap();
        change(folder.path());
        digest_folder(folder.path()).unwrap()
    }

    #[test]
    fn equal_contents_have_equal_digests() {
        let first = digest_after(|_| ());
        let second = digest_after(|folder| {
            let file = folder.join("sub/file");
            fs::remove_file(&file).unwrap();
            fs::write(file, "content").unwrap();
        });
        assert_eq!(first, second);
        assert_eq!(first.0.len(), 64);
    }

    #[test]
    fn every_difference_that_an_instance_sees_counts() {
        let changes: [fn(&Path); 7] = [
            |_| (),
            |folder| fs::write(folder.join("sub/file"), "contents").unwrap(),
            |folder| fs::rename(folder.join("sub/file"), folder.join("file")).unwrap(),
            |folder| fs::create_dir(folder.join("empty")).unwrap(),
            |folder| symlink("other", folder.join("link")).unwrap(),
            |folder| symlink("sub", folder.join("link")).unwrap(),
            |folder| {
                let mode = fs::Permissions::from_mode(0o755);
                fs::set_permissions(folder.join("other"), mode).unwrap();
            },
        ];
        let digests: Vec<_> = changes.iter().map(digest_after).collect();
        for (at, digest) in digests.iter().enumerate() {
            assert!(!digests[..at].contains(digest), "change {at}");
        }
    }

    #[test]
    fn a_pipe_does_not_block() {
        let _ = digest_after(|folder| {
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            let path = folder.join("pipe");
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0)
                .unwrap();
        });
    }

    #[test]
    fn a_cached_digest_follows_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let mut cache = DigestCache::default();
        let before = cache.digest_of(folder.path()).unwrap();
        assert_eq!(cache.digest_of(folder.path()).unwrap(), before);
        fs::write(folder.path().join("file"), "x").unwrap();
        assert_ne!(cache.digest_of(folder.path()).unwrap(), before);
        cache.retain_folders(|_| false);
        assert!(cache.0.is_empty());
    }
}
