//! Metadata of the files in use, from which polls notice a change.
//!
//! Polls instead of inotify(7): a folder on NFS sends no events for changes on other machines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Deepest nesting that is looked at: what the node copies, `nearpath_node::artifact`.
const MAX_DEPTH: usize = 64;

/// Paths whose changes matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WatchedPaths {
    /// Files, also missing ones.
    pub(crate) files: BTreeSet<PathBuf>,
    /// Folders with everything below them.
    pub(crate) trees: BTreeSet<PathBuf>,
}

impl WatchedPaths {
    pub(crate) fn extend(&mut self, other: Self) {
        self.files.extend(other.files);
        self.trees.extend(other.trees);
    }
}

/// Metadata of a file, or of all files of a folder, as one number. Another one means a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStamp(u64);

/// Stamps of all watched paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FolderScan(BTreeMap<PathBuf, FileStamp>);

impl FolderScan {
    /// Looks at all paths. Blocks.
    pub(crate) fn of_paths(watched: &WatchedPaths) -> Self {
        let files = watched
            .files
            .iter()
            .map(|path| (path.clone(), stamp_file(path)));
        let trees = watched
            .trees
            .iter()
            .map(|path| (path.clone(), stamp_tree(path)));
        Self(files.chain(trees).collect())
    }
}

/// Returns the stamp of a file; links are followed.
fn stamp_file(path: &Path) -> FileStamp {
    FileStamp(fs::metadata(path).map_or(0, |file| hash_entry(path, &file)))
}

/// Returns the stamp of a folder with everything below it. Links below it are not followed.
pub(crate) fn stamp_tree(path: &Path) -> FileStamp {
    let own = stamp_file(path).0;
    FileStamp(sum_entries(path, 0).wrapping_add(own))
}

/// Adds up the entries' hashes, so that their order does not matter.
fn sum_entries(folder: &Path, depth: usize) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    entries
        .flatten()
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
        .map(|(path, file)| match file.is_dir() && depth < MAX_DEPTH {
            true => hash_entry(&path, &file).wrapping_add(sum_entries(&path, depth + 1)),
            false => hash_entry(&path, &file),
        })
        .fold(0, u64::wrapping_add)
}

fn hash_entry(path: &Path, file: &Metadata) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    (file.dev(), file.ino(), file.size(), file.mode()).hash(&mut hasher);
    (file.mtime(), file.mtime_nsec()).hash(&mut hasher);
    // Programs that copy files set mtime themselves, but none can set ctime.
    (file.ctime(), file.ctime_nsec()).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn every_change_below_a_tree_changes_its_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("sub")).unwrap();
        let mut seen = vec![stamp_tree(folder.path())];
        let mut expect_change = |what: &str| {
            let stamp = stamp_tree(folder.path());
            assert!(!seen.contains(&stamp), "{what}");
            seen.push(stamp);
        };
        fs::write(at("sub/file"), "one").unwrap();
        expect_change("a new file");
        fs::write(at("sub/file"), "longer").unwrap();
        expect_change("another size");
        fs::set_permissions(at("sub/file"), fs::Permissions::from_mode(0o755)).unwrap();
        expect_change("another mode");
        symlink("file", at("sub/link")).unwrap();
        expect_change("a link");
        fs::rename(at("sub/link"), at("sub/other")).unwrap();
        expect_change("another name");
        fs::write(at("new"), "longer").unwrap();
        fs::rename(at("new"), at("sub/file")).unwrap();
        expect_change("another file of the same name and size");
        fs::remove_dir_all(at("sub")).unwrap();
        expect_change("a removal");
    }

    #[test]
    fn a_link_to_another_folder_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["one", "two"] {
            fs::create_dir(at(name)).unwrap();
        }
        symlink("one", at("current")).unwrap();
        let before = stamp_tree(&at("current"));
        assert_eq!(before, stamp_tree(&at("current")));
        fs::remove_file(at("current")).unwrap();
        symlink("two", at("current")).unwrap();
        assert_ne!(before, stamp_tree(&at("current")));
    }

    #[test]
    fn a_file_that_appears_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let watched = WatchedPaths {
            files: [folder.path().join("later")].into(),
            ..WatchedPaths::default()
        };
        let before = FolderScan::of_paths(&watched);
        assert_eq!(before, FolderScan::of_paths(&watched));
        fs::write(folder.path().join("later"), "").unwrap();
        assert_ne!(before, FolderScan::of_paths(&watched));
    }
}
