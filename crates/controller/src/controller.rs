//! The controller as a value: open it, hand its router to a listener, ring its bell.

use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nearpath_types::{FunctionId, StatusSource};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::credentials::{Auth, Credentials};
use crate::fleet::Fleet;
use crate::model::{Command, Model, Outcome};
use crate::store::{DataDir, OpenError, Store};
use crate::writer::{Failure, Order, Shown, Writer};

/// How to open a controller.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the database, the lock and generated credentials are.
    pub data_dir: PathBuf,
    /// Who may use the API.
    pub auth: Auth,
    /// What `/system/info` tells.
    pub version: Version,
}

impl Config {
    /// A controller on `data_dir` with generated credentials.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self { data_dir: data_dir.into(), auth: Auth::Generated, version: Version::default() }
    }
}

/// Which build this is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Release number.
    pub release: String,
    /// Commit, or empty.
    pub sha: String,
    /// The commit's first line, or empty.
    pub commit_message: String,
}

impl Default for Version {
    fn default() -> Self {
        let release = env!("CARGO_PKG_VERSION").to_owned();
        Self { release, sha: String::new(), commit_message: String::new() }
    }
}

/// Desired state and the API in front of it. A handle: clones are the same controller. The store is closed by
/// [`Controller::close`], or when the last handle (the router and its open requests included) is gone.
#[derive(Clone)]
pub struct Controller {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) fleet: Arc<dyn Fleet>,
    pub(crate) status: Arc<dyn StatusSource>,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) version: Version,
    shown: Arc<Shown>,
    work: Mutex<Option<Work>>,
}

/// The open end of the store's thread.
struct Work {
    orders: Sender<Order>,
    thread: JoinHandle<()>,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller").field("trouble", &self.trouble()).finish_non_exhaustive()
    }
}

impl Controller {
    /// Opens the store, reads everything and applies it to the fleet; `status` replies to status queries. Needs a running tokio runtime.
    ///
    /// # Errors
    /// When the data directory is in use, damaged, from a newer version or cannot be written, or the credentials cannot
    /// be read. The texts say what to do.
    pub async fn open(config: Config, fleet: Arc<dyn Fleet>, status: Arc<dyn StatusSource>) -> Result<Self, OpenError> {
        let claimed = DataDir::claim(&config.data_dir)?;
        Self::open_in(claimed, config, fleet, status).await
    }

    /// Like [`Controller::open`], in a directory that was claimed before; `config.data_dir` is not looked at.
    ///
    /// # Errors
    /// As for [`Controller::open`].
    pub async fn open_in(
        folder: DataDir,
        config: Config,
        fleet: Arc<dyn Fleet>,
        status: Arc<dyn StatusSource>,
    ) -> Result<Self, OpenError> {
        let runtime = Handle::current();
        let opening = tokio::task::spawn_blocking(move || Inner::open(folder, config, (fleet, status), runtime));
        match opening.await {
            Ok(opened) => opened.map(|inner| Self { inner: Arc::new(inner) }),
            Err(died) => std::panic::resume_unwind(died.into_panic()),
        }
    }

    /// Sends a command and waits until what came of it is on disk and applied.
    ///
    /// # Errors
    /// When it was refused or could not be written; then nothing was changed.
    pub async fn order(&self, command: Command) -> Result<Outcome, Failure> {
        let answered = self.inner.send(command).ok_or(Failure::Closed)?;
        answered.await.unwrap_or(Err(Failure::Closed))
    }

    /// Asks for a sleeping function to be scaled to its minimum. Returns at once; calls for the same function are
    /// folded into one while it is under way. Without effect on functions that are awake or unknown.
    pub fn wake(&self, id: &FunctionId) {
        let sleeps = self.model().functions.get(id).is_some_and(|function| function.replicas == 0);
        if sleeps && self.inner.shown.note_wake(id) {
            tracing::info!(function = %id, "waking");
            drop(self.inner.send(Command::Wake(id.clone())));
        }
    }

    /// Carries out what was ordered before, closes the store and frees the data directory. Orders that come later fail
    /// with [`Failure::Closed`]; reads and wake-ups go on, the latter without effect.
    pub async fn close(&self) {
        let inner = self.inner.clone();
        if let Err(died) = tokio::task::spawn_blocking(move || inner.close()).await {
            tracing::error!(%died, "the store could not be closed");
        }
    }

    /// The model as of the last commit.
    pub fn model(&self) -> Arc<Model> {
        self.inner.shown.model()
    }

    /// Why changes are not taken (`read-only`), for `/healthz`; `None`: they are.
    pub fn trouble(&self) -> Option<Arc<str>> {
        self.inner.shown.trouble()
    }

    /// The administrator's credentials; `None`: the API asks for none.
    pub fn credentials(&self) -> Option<&Credentials> {
        self.inner.credentials.as_ref()
    }
}

impl Inner {
    fn open(
        folder: DataDir,
        config: Config,
        (fleet, status): (Arc<dyn Fleet>, Arc<dyn StatusSource>),
        runtime: Handle,
    ) -> Result<Self, OpenError> {
        let credentials = match config.auth {
            Auth::Generated => Some(Credentials::load(folder.path(), true)?),
            Auth::Files(folder) => Some(Credentials::load(&folder, false)?),
            Auth::Given(credentials) => Some(credentials),
            Auth::Off => None,
        };
        let (store, model) = Store::open(folder)?;
        let shown = Arc::new(Shown::default());
        let writer = Writer::new(store, model, shown.clone(), fleet.clone());
        let (orders, inbox) = channel();
        let work = move || {
            let _context = runtime.enter();
            writer.run(&inbox);
        };
        let thread = std::thread::Builder::new().name("store".to_owned()).spawn(work).map_err(OpenError::Thread)?;
        let work = Mutex::new(Some(Work { orders, thread }));
        Ok(Self { fleet, status, credentials, version: config.version, shown, work })
    }

    fn send(&self, command: Command) -> Option<oneshot::Receiver<Result<Outcome, Failure>>> {
        let (answer, answered) = oneshot::channel();
        self.work().as_ref()?.orders.send(Order { command, answer }).ok()?;
        Some(answered)
    }

    fn work(&self) -> MutexGuard<'_, Option<Work>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the thread after what it has been sent, and lets go of the data directory.
    fn close(&self) {
        let Some(Work { orders, thread }) = self.work().take() else { return };
        drop(orders);
        if thread.join().is_err() {
            tracing::error!("the store's thread had panicked");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}
