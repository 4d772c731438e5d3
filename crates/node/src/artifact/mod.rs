//! Immutable deployments: a revision's folder is copied on first use, and all its instances use
//! that copy, also after a restart.
//!
//! A copy appears under `artifacts/FUNCTION/REVISION` by a rename, so it is complete or absent.
//! Unneeded copies are removed, including those unknown at the node's start. No start waits for the
//! disk: a mark in `unsynced` exists until a copy is flushed. A node that finds a mark at its start
//! copies again. Equal files of copies in a namespace are one file ([`contents`]).

mod contents;
mod copy;
mod flush_queue;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, io, mem};

use nearpath_types::{FunctionId, Revision};
use tokio::sync::OnceCell;

use contents::ContentStore;
pub use copy::{CopyError, FolderLimit};
use flush_queue::FlushQueue;

const CONTENTS_DIR: &str = "contents";
const DRAFTS_DIR: &str = "drafts";
const UNSYNCED_DIR: &str = "unsynced";

/// A revision of a function.
pub type ArtifactKey = (FunctionId, Revision);

/// Reasons why an artifact is unavailable. The texts are for the tenant.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The reference names no folder.
    #[error(
        "image {0:?} cannot be run: images need an image store, which this node does not have yet; name a folder of this machine as file:///ABSOLUTE/FOLDER"
    )]
    NoImageStore(String),
    /// The folder cannot be copied.
    #[error("the folder of the image cannot be used: {0}")]
    Copy(#[from] CopyError),
    /// The node's own disk failed.
    #[error("the node cannot keep a copy of the function's folder: {path}: {error}", path = path.display())]
    Store {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl ArtifactError {
    /// Returns whether every retry must fail until the function is deployed again.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::NoImageStore(_) => true,
            Self::Copy(error) => error.is_lasting(),
            Self::Store { .. } => false,
        }
    }
}

/// Copies below one folder.
#[derive(Debug)]
pub struct ArtifactStore {
    root: PathBuf,
    limit: FolderLimit,
    shared_dirs: Vec<PathBuf>,
    contents: ContentStore,
    shares_files: bool,
    state: Mutex<StoreState>,
    unflushed: FlushQueue,
    collect_lock: Mutex<()>,
}

#[derive(Debug, Default)]
struct StoreState {
    needed: BTreeMap<FunctionId, BTreeSet<Revision>>,
    copying: BTreeMap<ArtifactKey, Arc<OnceCell<PathBuf>>>,
    /// Functions that may have unneeded copies.
    stale: BTreeSet<FunctionId>,
    drafts: u64,
    holds: usize,
}

impl StoreState {
    fn is_needed(&self, function: &FunctionId, revision: Revision) -> bool {
        let revisions = self.needed.get(function);
        revisions.is_some_and(|revisions| revisions.contains(&revision))
    }
}

/// Keeps all copies of a store from removal while it lives.
#[derive(Debug)]
pub struct ArtifactHold(Arc<ArtifactStore>);

impl ArtifactHold {
    /// The store.
    pub fn store(&self) -> &Arc<ArtifactStore> {
        &self.0
    }
}

impl Drop for ArtifactHold {
    fn drop(&mut self) {
        // The next collection removes what has become unneeded.
        self.0.lock_state().holds -= 1;
    }
}

impl ArtifactStore {
    /// Opens the store below `root` and removes drafts of an interrupted run. Blocks.
    ///
    /// # Errors
    /// Fails when the folder cannot be created or read.
    pub fn open(root: PathBuf, limit: FolderLimit) -> io::Result<Self> {
        for folder in [DRAFTS_DIR, UNSYNCED_DIR] {
            fs::create_dir_all(root.join(folder))?;
        }
        for mark in fs::read_dir(root.join(UNSYNCED_DIR))? {
            let mark = mark?;
            // The copy first, then its mark: a crash in between repeats the removal.
            remove_folder(&root.join(mark.file_name().to_string_lossy().replace('@', "/")))?;
            fs::remove_file(mark.path())?;
        }
        for draft_path in fs::read_dir(root.join(DRAFTS_DIR))? {
            let draft_path = draft_path?;
            // A file is a link of an interrupted run.
            match draft_path.file_type()?.is_dir() {
                true => fs::remove_dir_all(draft_path.path())?,
                false => fs::remove_file(draft_path.path())?,
            }
        }
        Ok(Self {
            // Last: what only unflushed copies used has no other link now.
            contents: ContentStore::open(root.join(CONTENTS_DIR))?,
            root,
            limit,
            shared_dirs: Vec::new(),
            shares_files: true,
            state: Mutex::default(),
            unflushed: FlushQueue::default(),
            collect_lock: Mutex::default(),
        })
    }

    /// Permits links into these folders of the host, which instances see.
    pub fn with_shared_dirs(self, shared_dirs: Vec<PathBuf>) -> Self {
        Self {
            shared_dirs,
            ..self
        }
    }

    /// Keeps files of each copy apart: without a sandbox, a function could change those of others.
    pub fn without_shared_files(self) -> Self {
        Self {
            shares_files: false,
            ..self
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, StoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the folder of a revision, copied from `image` on first use.
    ///
    /// Concurrent callers share one copying; after a failure the next caller retries.
    ///
    /// # Errors
    /// See [`ArtifactError`].
    pub async fn get_folder(
        self: &Arc<Self>,
        key: &ArtifactKey,
        image: &str,
    ) -> Result<PathBuf, ArtifactError> {
        let source = source_folder(image)?;
        // The lock ends with this statement: copying takes long, and only callers of this key wait.
        let cell = self
            .lock_state()
            .copying
            .entry(key.clone())
            .or_default()
            .clone();
        let path = cell.get_or_try_init(|| self.clone().copy_folder(source, key.clone()));
        path.await.cloned()
    }

    async fn copy_folder(
        self: Arc<Self>,
        source: PathBuf,
        key: ArtifactKey,
    ) -> Result<PathBuf, ArtifactError> {
        let (store, filling) = (self.clone(), key.clone());
        let copied =
            tokio::task::spawn_blocking(move || store.create_copy(&source, &filling)).await;
        let is_new = copied.expect("copying does not panic")?;
        let target = self.revision_folder(&key);
        if is_new && self.unflushed.push(self.unsynced_mark(&key)) {
            // Not awaited: no start waits for the disk.
            tokio::task::spawn_blocking(move || self.unflushed.flush_all(&self.root));
        }
        Ok(target)
    }

    fn unsynced_mark(&self, (function, revision): &ArtifactKey) -> PathBuf {
        self.root
            .join(UNSYNCED_DIR)
            .join(format!("{function}@{revision}"))
    }

    fn revision_folder(&self, (function, revision): &ArtifactKey) -> PathBuf {
        self.root
            .join(function.to_string())
            .join(revision.to_string())
    }

    /// Creates a missing copy; returns whether it was created.
    fn create_copy(&self, source: &Path, key: &ArtifactKey) -> Result<bool, ArtifactError> {
        let target = &self.revision_folder(key);
        // Complete, because a copy appears there by a rename.
        if target.is_dir() {
            return Ok(false);
        }
        let draft_path = self.new_draft_path();
        let copied = copy::copy_folder(
            source,
            &draft_path,
            self.limit,
            &self.shared_dirs,
            self.shares_files
                .then_some((&self.contents, key.0.namespace.as_str())),
        )
        .map_err(ArtifactError::from);
        let published = copied.and_then(|()| {
            self.publish_draft(&draft_path, target, key)
                .map_err(|error| store_error(target, error))
        });
        if published.is_err() {
            // The node's next start removes leftovers.
            let _ = fs::remove_dir_all(&draft_path);
            let _ = self.contents.remove_unused();
        }
        published.map(|()| true)
    }

    fn publish_draft(&self, draft: &Path, target: &Path, key: &ArtifactKey) -> io::Result<()> {
        let mut state = self.lock_state();
        // Before the rename: a copy without a mark counts as flushed.
        fs::write(self.unsynced_mark(key), "")?;
        fs::create_dir_all(target.parent().unwrap_or(target))?;
        fs::rename(draft, target)?;
        // A backup copies for itself, and what it copied may be outdated by now.
        if !state.is_needed(&key.0, key.1) {
            state.stale.insert(key.0.clone());
        }
        Ok(())
    }

    fn new_draft_path(&self) -> PathBuf {
        let mut state = self.lock_state();
        state.drafts += 1;
        // Two processes use the folder during a take-over.
        let name = format!("{}-{}", std::process::id(), state.drafts);
        self.root.join(DRAFTS_DIR).join(name)
    }

    /// Marks a copy as needed, in addition to others. Call it before the first use.
    pub fn add_needed(&self, (function, revision): ArtifactKey) {
        let mut state = self.lock_state();
        state.needed.entry(function).or_default().insert(revision);
    }

    /// Replaces the needed copies of a function.
    pub fn set_needed(&self, function: &FunctionId, revisions: BTreeSet<Revision>) {
        let mut state = self.lock_state();
        let key = |revision| (function.clone(), Revision(revision));
        let copying = state.copying.range(key(0)..=key(u64::MAX));
        let outdated: Vec<_> = copying
            .map(|(key, _)| key)
            .filter(|(_, revision)| !revisions.contains(revision))
            .cloned()
            .collect();
        // A failed or outdated copying must not be served from memory later.
        for key in outdated {
            state.copying.remove(&key);
        }
        match revisions.is_empty() {
            true => state.needed.remove(function),
            false => state.needed.insert(function.clone(), revisions),
        };
        state.stale.insert(function.clone());
    }

    /// Keeps all copies, also unneeded ones, while the value lives.
    pub fn hold_copies(self: &Arc<Self>) -> ArtifactHold {
        self.lock_state().holds += 1;
        ArtifactHold(Arc::clone(self))
    }

    /// Removes unneeded copies of functions whose needs changed, unless they are held. Blocks. A copy
    /// that becomes needed meanwhile is created again.
    ///
    /// # Errors
    /// Fails when something cannot be read or removed; the next call retries.
    pub fn collect_stale(&self) -> io::Result<()> {
        let _collecting = self.lock_collection();
        let stale = self.take_stale();
        let collected = self.collect_functions(&stale);
        if collected.is_err() {
            self.lock_state().stale.extend(stale);
        }
        collected
    }

    /// Removes unneeded copies of all functions, also those that an earlier process left. Blocks.
    ///
    /// # Errors
    /// As for [`ArtifactStore::collect_stale`].
    pub fn collect_garbage(&self) -> io::Result<()> {
        let mut found = BTreeSet::new();
        for folder in fs::read_dir(&self.root)? {
            let name = folder?.file_name();
            let is_function = ![CONTENTS_DIR, DRAFTS_DIR, UNSYNCED_DIR]
                .map(OsString::from)
                .contains(&name);
            // Nothing else is made there; what has no function's name is not ours to remove.
            let function = name.to_str().and_then(|name| name.parse().ok());
            found.extend(function.filter(|_| is_function));
        }
        self.lock_state().stale.extend(found);
        self.collect_stale()
    }

    fn lock_collection(&self) -> MutexGuard<'_, ()> {
        // One collection at a time: two would move the same folders.
        self.collect_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the functions to collect; none while copies are held.
    fn take_stale(&self) -> BTreeSet<FunctionId> {
        let mut state = self.lock_state();
        match state.holds {
            0 => mem::take(&mut state.stale),
            _ => BTreeSet::new(),
        }
    }

    fn collect_functions(&self, functions: &BTreeSet<FunctionId>) -> io::Result<()> {
        let mut leaves_unused = false;
        for function in functions {
            leaves_unused |= self.collect_revisions(function)?;
        }
        match leaves_unused {
            true => self.contents.remove_unused(),
            false => Ok(()),
        }
    }

    /// Removes unneeded copies of a function; returns whether contents may be unused now.
    fn collect_revisions(&self, function: &FunctionId) -> io::Result<bool> {
        let folder = self.root.join(function.to_string());
        let mut leaves_unused = false;
        let copies = match fs::read_dir(&folder) {
            // Never started, or collected before.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            copies => copies?,
        };
        for copy in copies {
            let copy = copy?;
            let revision = copy.file_name().to_str().and_then(|name| name.parse().ok());
            let trash = self.new_draft_path();
            if self.discard_unneeded(function, revision.map(Revision), &copy.path(), &trash)? {
                leaves_unused |= contents::has_last_names(&trash)?;
                fs::remove_dir_all(trash)?;
            }
        }
        let _state = self.lock_state();
        let _ = fs::remove_dir(folder); // fails while the folder has revisions
        Ok(leaves_unused)
    }

    /// Moves an unneeded copy away. The lock is held during the move, so the copy cannot become
    /// needed in between.
    fn discard_unneeded(
        &self,
        function: &FunctionId,
        revision: Option<Revision>,
        path: &Path,
        trash: &Path,
    ) -> io::Result<bool> {
        let mut state = self.lock_state();
        if revision.is_some_and(|revision| state.is_needed(function, revision)) {
            return Ok(false);
        }
        if state.holds > 0 {
            // Held after the collection began: a later one removes the copy.
            state.stale.insert(function.clone());
            return Ok(false);
        }
        // A rename is quick; the slow removal happens outside of the lock.
        fs::rename(path, trash).map(|()| true)
    }
}

fn remove_folder(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn source_folder(image: &str) -> Result<PathBuf, ArtifactError> {
    let path = image
        .strip_prefix("file://")
        .filter(|path| path.starts_with('/') && !path.contains('\0'));
    path.map(PathBuf::from)
        .ok_or_else(|| ArtifactError::NoImageStore(image.to_owned()))
}

fn store_error(path: &Path, error: io::Error) -> ArtifactError {
    ArtifactError::Store {
        path: path.to_owned(),
        error,
    }
}

#[cfg(test)]
mod tests;
