//! Deployments that do not change: on the first use of a revision its folder is copied, and every instance of it, now or
//! after a restart, sees that copy.
//!
//! A copy appears under `artifacts/FUNCTION/REVISION` by a rename, so it is complete or absent. It goes when nothing
//! needs it any more; what the node does not know at its start goes too. No start waits for the disk: until a copy is
//! flushed a mark lies in `unsynced`, and a node that finds one at its start makes that copy again.

mod copy;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use nearpath_types::{FunctionId, Revision};
use tokio::sync::OnceCell;

pub use copy::{CopyError, Limit};

const DRAFTS: &str = "drafts";
const UNSYNCED: &str = "unsynced";

/// One version of one function.
pub type Key = (FunctionId, Revision);

/// Why there is no artifact. The texts are for the tenant.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The reference names no folder.
    #[error(
        "image {0:?} cannot be run: images need an image store, which this node does not have yet; name a folder of this machine as file:///ABSOLUTE/FOLDER"
    )]
    NoImageStore(String),
    /// The folder cannot be taken over.
    #[error("the folder of the image cannot be used: {0}")]
    Copy(#[from] CopyError),
    /// The node's own disk.
    #[error("the node cannot keep a copy of the function's folder: {path}: {error}", path = path.display())]
    Store {
        /// Where.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

impl ArtifactError {
    /// Whether another try must fail too, until the function is deployed anew.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::NoImageStore(_) => true,
            Self::Copy(error) => error.is_lasting(),
            Self::Store { .. } => false,
        }
    }
}

/// The copies below one folder.
#[derive(Debug)]
pub struct Artifacts {
    root: PathBuf,
    limit: Limit,
    state: Mutex<State>,
    collecting: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    needed: BTreeSet<Key>,
    copying: HashMap<Key, Arc<OnceCell<PathBuf>>>,
    drafts: u64,
}

impl Artifacts {
    /// Opens the store below `root` and removes the drafts that an interrupted life left. Blocks.
    ///
    /// # Errors
    /// When the folder cannot be made or read.
    pub fn open(root: PathBuf, limit: Limit) -> io::Result<Self> {
        for folder in [DRAFTS, UNSYNCED] {
            fs::create_dir_all(root.join(folder))?;
        }
        for mark in fs::read_dir(root.join(UNSYNCED))? {
            let mark = mark?;
            remove_folder(&root.join(mark.file_name().to_string_lossy().replace('@', "/")))?;
            fs::remove_file(mark.path())?;
        }
        for draft in fs::read_dir(root.join(DRAFTS))? {
            fs::remove_dir_all(draft?.path())?;
        }
        Ok(Self { root, limit, state: Mutex::default(), collecting: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The folder of a revision, copied from `image` if this is its first use. Instances that start together share one
    /// copying; a failed one is tried again by the next.
    ///
    /// # Errors
    /// See [`ArtifactError`].
    pub async fn get(self: &Arc<Self>, key: &Key, image: &str) -> Result<PathBuf, ArtifactError> {
        let source = folder(image)?;
        let cell = self.state().copying.entry(key.clone()).or_default().clone();
        let path = cell.get_or_try_init(|| self.clone().copy(source, key.clone()));
        path.await.cloned()
    }

    async fn copy(self: Arc<Self>, source: PathBuf, key: Key) -> Result<PathBuf, ArtifactError> {
        let (store, place, mark) = (self.clone(), self.place(&key), self.mark(&key));
        let filling = (place.clone(), mark.clone());
        let copied = tokio::task::spawn_blocking(move || store.fill(&source, &filling.0, &filling.1)).await;
        if copied.expect("copying does not panic")? {
            let copy = place.clone();
            tokio::task::spawn_blocking(move || flush(&copy, &mark));
        }
        Ok(place)
    }

    fn mark(&self, (function, revision): &Key) -> PathBuf {
        self.root.join(UNSYNCED).join(format!("{function}@{revision}"))
    }

    fn place(&self, (function, revision): &Key) -> PathBuf {
        self.root.join(function.to_string()).join(revision.to_string())
    }

    /// Makes the copy unless it is there; whether it was made.
    fn fill(&self, source: &Path, place: &Path, mark: &Path) -> Result<bool, ArtifactError> {
        if place.is_dir() {
            return Ok(false);
        }
        let draft = self.draft();
        let copied = copy::folder(source, &draft, self.limit).map_err(ArtifactError::from);
        let kept = copied.and_then(|()| self.publish(&draft, place, mark).map_err(|error| store_error(place, error)));
        if kept.is_err() {
            let _ = fs::remove_dir_all(&draft); // the next start of the node tries again
        }
        kept.map(|()| true)
    }

    fn publish(&self, draft: &Path, place: &Path, mark: &Path) -> io::Result<()> {
        let _no_collecting = self.state();
        fs::write(mark, "")?;
        fs::create_dir_all(place.parent().unwrap_or(place))?;
        fs::rename(draft, place)
    }

    fn draft(&self) -> PathBuf {
        let mut state = self.state();
        state.drafts += 1;
        self.root.join(DRAFTS).join(state.drafts.to_string())
    }

    /// Says that a copy is needed from now on, besides the others. To be called before its first use.
    pub fn also_need(&self, key: Key) {
        self.state().needed.insert(key);
    }

    /// Says which copies are needed from now on, and no others.
    pub fn need(&self, needed: BTreeSet<Key>) {
        let mut state = self.state();
        state.copying.retain(|key, _| needed.contains(key));
        state.needed = needed;
    }

    /// Removes what is not needed. Blocks. One that becomes needed again meanwhile is copied anew.
    ///
    /// # Errors
    /// When something cannot be read or removed.
    pub fn collect(&self) -> io::Result<()> {
        let _alone = self.collecting.lock().unwrap_or_else(PoisonError::into_inner);
        for function in fs::read_dir(&self.root)? {
            let function = function?;
            if function.file_name() != DRAFTS && function.file_name() != UNSYNCED {
                self.collect_function(&function.path())?;
            }
        }
        Ok(())
    }

    fn collect_function(&self, folder: &Path) -> io::Result<()> {
        for revision in fs::read_dir(folder)? {
            let path = revision?.path();
            let trash = self.draft();
            if self.discard(&path, &trash)? {
                fs::remove_dir_all(trash)?;
            }
        }
        let _no_publishing = self.state();
        let _ = fs::remove_dir(folder); // fails while it holds a revision
        Ok(())
    }

    /// Moves a copy that is not needed out of sight. The lock is held over the move, so that it cannot become needed in
    /// between.
    fn discard(&self, path: &Path, trash: &Path) -> io::Result<bool> {
        let state = self.state();
        match state.needed.iter().any(|key| self.place(key) == path) {
            true => Ok(false),
            false => fs::rename(path, trash).map(|()| true),
        }
    }
}

/// After this a power cut leaves a whole copy. When it fails the mark stays, which costs a copying at the next start.
fn flush(copy: &Path, mark: &Path) {
    let flushed = fs::File::open(copy).and_then(|folder| Ok(rustix::fs::syncfs(folder)?));
    match flushed.and_then(|()| fs::remove_file(mark)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(copy = %copy.display(), %error, "a copy could not be flushed to the disk");
        }
        _ => {}
    }
}

fn remove_folder(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn folder(image: &str) -> Result<PathBuf, ArtifactError> {
    let path = image.strip_prefix("file://").filter(|path| path.starts_with('/') && !path.contains('\0'));
    path.map(PathBuf::from).ok_or_else(|| ArtifactError::NoImageStore(image.to_owned()))
}

fn store_error(path: &Path, error: io::Error) -> ArtifactError {
    ArtifactError::Store { path: path.to_owned(), error }
}

#[cfg(test)]
mod tests;
