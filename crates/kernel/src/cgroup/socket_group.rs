//! The cgroup in which the instances of a node make their sockets, for programs that decide on them.
//!
//! A socket belongs to the unified cgroup (v2) of the process that made it, for its whole life. Where
//! instances have groups of their own there, the node's folder contains these. On a hybrid machine they
//! have none: the zygote enters this group, and its children are in it from the start.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::hierarchy::own_unified_group;
use super::{NodeCgroups, removal, with_path};

/// A cgroup with all sockets of a node's instances, and no others. Drop it after the launcher.
#[derive(Debug)]
pub struct SocketGroup {
    folder: PathBuf,
    /// The zygote enters it. Nothing else uses the folder, which ends with this value.
    is_for_zygote: bool,
}

impl SocketGroup {
    /// Finds or creates the group of a node.
    ///
    /// # Errors
    /// `Unsupported` without a unified hierarchy. Fails also when this process may not create a group in
    /// it.
    pub fn open(cgroups: &NodeCgroups) -> io::Result<Self> {
        if let Some(folder) = cgroups.unified_folder() {
            return Ok(Self {
                folder: folder.to_owned(),
                is_for_zygote: false,
            });
        }
        let folder = zygote_folder(&cgroups.node)?;
        // An earlier run of this node may have left it.
        fs::create_dir_all(&folder).map_err(|error| with_path(&folder, error))?;
        Ok(Self {
            folder,
            is_for_zygote: true,
        })
    }

    /// Returns the folder of the group.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder of the group that the zygote has to enter; `None` where instances enter their own.
    pub fn zygote_group(&self) -> Option<PathBuf> {
        self.is_for_zygote.then(|| self.folder.clone())
    }
}

fn zygote_folder(node: &str) -> io::Result<PathBuf> {
    Ok(own_unified_group()?.join("nearpath").join(node))
}

/// Removes the group of a node whose instances have ended, and ends its zygote.
pub(super) fn remove_zygote_group(node: &str) {
    let Ok(folder) = zygote_folder(node) else {
        return; // no unified hierarchy
    };
    if folder.exists()
        && let Err(error) = removal::remove_group(&folder)
    {
        tracing::debug!(%error, group = %folder.display(), "cgroup could not be removed; the node's next start uses it");
    }
}

impl Drop for SocketGroup {
    fn drop(&mut self) {
        if self.is_for_zygote {
            // Fails while an instance is inside; the next process of that name uses it again.
            let _ = fs::remove_dir(&self.folder);
        }
    }
}
