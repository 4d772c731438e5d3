//! The controller: open it, pass its router to a listener, wake functions through it.

use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use nearpath_types::{FunctionId, NodeName, StatusSource};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::admin_logins::AdminLogins;
use crate::credentials::{AdminCredentials, AuthMode};
use crate::fleet::Fleet;
use crate::model::{
    CommandOutcome, CommandRefusal, ControllerCommand, ControllerModel, DeclaredState,
};
use crate::peers::PeerNodes;
use crate::store::{ControllerStore, DataDir, StoreOpenError};
use crate::store_writer::{
    CommandRequest, ControllerError, DatabaseCopy, PublishedState, StoreRequest, StoreWriter,
};

/// Settings of a controller.
#[derive(Debug, Clone)]
pub struct ControllerConfig {
    /// Folder of the database, the lock and generated credentials.
    pub data_dir: PathBuf,
    /// Authentication of the API.
    pub auth: AuthMode,
    /// Version that `/system/info` reports.
    pub version: BuildVersion,
    /// Folder that declares the state ([`Controller::apply_declared`]); changes through the API
    /// are refused then.
    pub declared_in: Option<PathBuf>,
    /// Name of this node among others; `None`: it is the only one.
    pub node_name: Option<NodeName>,
}

impl ControllerConfig {
    /// A controller on `data_dir` with generated credentials.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            auth: AuthMode::Generated,
            version: BuildVersion::default(),
            declared_in: None,
            node_name: None,
        }
    }
}

/// Version of this build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildVersion {
    /// Release number.
    pub release: String,
    /// Commit, or empty.
    pub commit_sha: String,
    /// The commit's first line, or empty.
    pub commit_message: String,
}

impl Default for BuildVersion {
    fn default() -> Self {
        let release = env!("CARGO_PKG_VERSION").to_owned();
        Self {
            release,
            // Set by `make build` and `make dist`; a build for tests would change with each commit.
            commit_sha: option_env!("NEARPATH_COMMIT")
                .unwrap_or_default()
                .to_owned(),
            commit_message: String::new(),
        }
    }
}

/// Desired state and the API in front of it. A handle: clones share the same controller.
/// [`Controller::close`] closes the store, or the drop of the last handle, which includes the
/// router and its open requests.
#[derive(Clone)]
pub struct Controller {
    pub(crate) inner: Arc<ControllerState>,
}

pub(crate) struct ControllerState {
    pub(crate) fleet: Arc<dyn Fleet>,
    pub(crate) status: Arc<dyn StatusSource>,
    pub(crate) logins: Arc<AdminLogins>,
    pub(crate) version: BuildVersion,
    declared_in: Option<PathBuf>,
    node_name: Option<NodeName>,
    /// Unset: this node knows no others.
    peers: OnceLock<Arc<dyn PeerNodes>>,
    published: Arc<PublishedState>,
    store_thread: Mutex<Option<StoreThread>>,
}

/// Channel and handle of the store's thread.
struct StoreThread {
    requests: Sender<StoreRequest>,
    thread: JoinHandle<()>,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller")
            .field("read_only_reason", &self.read_only_reason())
            .finish_non_exhaustive()
    }
}

impl Controller {
    /// Opens the store, reads everything and applies it to the fleet. `status` replies to status
    /// queries. Needs a running tokio runtime.
    ///
    /// # Errors
    /// When the data directory is in use, damaged, from a newer version or not writable, or when
    /// the credentials cannot be read. The texts name the correction.
    pub async fn open(
        config: ControllerConfig,
        fleet: Arc<dyn Fleet>,
        status: Arc<dyn StatusSource>,
    ) -> Result<Self, StoreOpenError> {
        let data_dir = DataDir::claim(&config.data_dir)?;
        Self::open_claimed(data_dir, config, fleet, status).await
    }

    /// Like [`Controller::open`], in a directory that was claimed before; `config.data_dir` is
    /// ignored.
    ///
    /// # Errors
    /// As for [`Controller::open`].
    pub async fn open_claimed(
        data_dir: DataDir,
        config: ControllerConfig,
        fleet: Arc<dyn Fleet>,
        status: Arc<dyn StatusSource>,
    ) -> Result<Self, StoreOpenError> {
        let runtime = Handle::current();
        // SQLite and fsync block: not on a runtime thread, which serves other requests too.
        let opened = tokio::task::spawn_blocking(move || {
            ControllerState::open(data_dir, config, (fleet, status), runtime)
        });
        match opened.await {
            Ok(opened) => opened.map(|inner| Self {
                inner: Arc::new(inner),
            }),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }

    /// Sends a command and waits until its result is on disk and applied.
    ///
    /// # Errors
    /// When it was refused or could not be written; then nothing was changed.
    pub async fn apply_command(
        &self,
        command: ControllerCommand,
    ) -> Result<CommandOutcome, ControllerError> {
        self.check_changeable()?;
        self.send_and_wait(command).await
    }

    /// Refuses changes by commands where a source declares the state.
    ///
    /// # Errors
    /// [`CommandRefusal::DeclaredIn`] names the source.
    pub(crate) fn check_changeable(&self) -> Result<(), CommandRefusal> {
        match &self.inner.declared_in {
            Some(source) => Err(CommandRefusal::DeclaredIn(source.clone())),
            None => Ok(()),
        }
    }

    /// Replaces the whole state by that of a source, in one transaction, and waits until it is on
    /// disk and applied. An equal state writes nothing. Folders of sleeping functions are copied
    /// too, so that they can wake without their source.
    ///
    /// # Errors
    /// When a function was refused, which the text names, or nothing could be written; then nothing
    /// was changed.
    pub async fn apply_declared(
        &self,
        state: Arc<DeclaredState>,
    ) -> Result<CommandOutcome, ControllerError> {
        let command = ControllerCommand::ApplyDeclared(Arc::clone(&state));
        let outcome = self.send_and_wait(command).await?;
        self.copy_sleeping_folders(&state.node).await;
        Ok(outcome)
    }

    /// Copies what no instance copies at its start.
    async fn copy_sleeping_folders(&self, node: &NodeName) {
        let model = self.model();
        let sleeping = model.functions.values().filter(|function| {
            function.replicas == 0 && function.folder.is_some() && function.policy().runs_on(node)
        });
        for function in sleeping {
            let (id, image) = (function.spec.id(), function.spec.image.clone());
            let folders = self.inner.fleet.hold_folders();
            let copied = folders.revision_folder(id.clone(), function.revision, image);
            if let Err(error) = copied.await {
                tracing::warn!(function = %id, "source: the folder of a sleeping function could not be copied: {error}");
            }
        }
    }

    async fn send_and_wait(
        &self,
        command: ControllerCommand,
    ) -> Result<CommandOutcome, ControllerError> {
        let reply = self
            .inner
            .send_command(command)
            .ok_or(ControllerError::Closed)?;
        // The sender is dropped only when the thread has ended without the command.
        reply.await.unwrap_or(Err(ControllerError::Closed))
    }

    /// Copies the database as of now.
    pub(crate) async fn copy_database(&self) -> Result<DatabaseCopy, ControllerError> {
        let reply = self.inner.request_copy().ok_or(ControllerError::Closed)?;
        // The sender is dropped only when the thread has ended without the request.
        reply.await.unwrap_or(Err(ControllerError::Closed))
    }

    /// Scales a sleeping function to its minimum. Returns at once; calls for a function that is
    /// being woken are merged. Without effect on functions that are awake or unknown.
    pub fn wake_function(&self, id: &FunctionId) {
        let is_asleep = self
            .model()
            .functions
            .get(id)
            .is_some_and(|function| function.replicas == 0);
        // The gateway calls this for every request to a sleeping function: one command is enough
        // for all of them.
        if is_asleep && self.inner.published.begin_wake(id) {
            tracing::info!(function = %id, "controller: waking function");
            drop(self.inner.send_command(ControllerCommand::Wake(id.clone())));
        }
    }

    /// Finishes earlier commands, closes the store and frees the data directory. Later commands
    /// fail with [`ControllerError::Closed`]; reads go on, and wake-ups have no effect.
    pub async fn close(&self) {
        let inner = self.inner.clone();
        if let Err(panic) = tokio::task::spawn_blocking(move || inner.close()).await {
            tracing::error!(%panic, "store: close failed");
        }
    }

    /// Adds the other nodes, which queries ask from now on; only the first call counts.
    pub fn attach_peers(&self, peers: Arc<dyn PeerNodes>) {
        let _ = self.inner.peers.set(peers);
    }

    /// Model as of the last commit.
    pub fn model(&self) -> Arc<ControllerModel> {
        self.inner.published.model()
    }

    /// Reason why changes are refused (`read-only`), for `/healthz`; `None` when they are accepted.
    pub fn read_only_reason(&self) -> Option<Arc<str>> {
        self.inner.published.read_only_reason()
    }

    /// Credentials of the administrator; `None` when the API requires none.
    pub fn credentials(&self) -> Option<&AdminCredentials> {
        self.inner.logins.credentials()
    }

    /// Check of logins, for listeners of other protocols.
    pub fn logins(&self) -> Arc<AdminLogins> {
        self.inner.logins.clone()
    }
}

impl ControllerState {
    fn open(
        data_dir: DataDir,
        config: ControllerConfig,
        (fleet, status): (Arc<dyn Fleet>, Arc<dyn StatusSource>),
        runtime: Handle,
    ) -> Result<Self, StoreOpenError> {
        let credentials = match config.auth {
            AuthMode::Generated => Some(AdminCredentials::load_files(data_dir.path(), true)?),
            AuthMode::Files(folder) => Some(AdminCredentials::load_files(&folder, false)?),
            AuthMode::Provided(credentials) => Some(credentials),
            AuthMode::Disabled => None,
        };
        let (store, model) = ControllerStore::open(data_dir)?;
        let published = Arc::new(PublishedState::default());
        let writer = StoreWriter::new(store, model, published.clone(), fleet.clone());
        let (requests, inbox) = channel();
        let run_writer = move || {
            // `Fleet::apply_desired` may spawn tasks, which needs the context of a runtime on this
            // plain thread.
            let _context = runtime.enter();
            writer.run_until_closed(&inbox);
        };
        // One thread for all writes: SQLite has one writer anyway, and commands are decided in a
        // total order.
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(run_writer)
            .map_err(StoreOpenError::Thread)?;
        let work = Mutex::new(Some(StoreThread { requests, thread }));
        Ok(Self {
            fleet,
            status,
            logins: Arc::new(AdminLogins::new(credentials)),
            version: config.version,
            declared_in: config.declared_in,
            node_name: config.node_name,
            peers: OnceLock::new(),
            published,
            store_thread: work,
        })
    }

    /// Returns the name of this node among others.
    pub(crate) fn node_name(&self) -> Option<&NodeName> {
        self.node_name.as_ref()
    }

    /// Returns the other nodes.
    pub(crate) fn peers(&self) -> Option<&Arc<dyn PeerNodes>> {
        self.peers.get()
    }

    /// Returns the nodes to which queries go.
    pub(crate) fn queried_peers(&self) -> Vec<NodeName> {
        let peers = self.peers.get();
        peers.map(|peers| peers.queried_peers()).unwrap_or_default()
    }

    fn send_command(
        &self,
        command: ControllerCommand,
    ) -> Option<oneshot::Receiver<Result<CommandOutcome, ControllerError>>> {
        let (reply_sender, reply) = oneshot::channel();
        self.lock_store_thread()
            .as_ref()?
            .requests
            .send(StoreRequest::Command(CommandRequest {
                command,
                reply: reply_sender,
            }))
            .ok()?;
        Some(reply)
    }

    fn request_copy(&self) -> Option<oneshot::Receiver<Result<DatabaseCopy, ControllerError>>> {
        let (reply_sender, reply) = oneshot::channel();
        let guard = self.lock_store_thread();
        let requests = &guard.as_ref()?.requests;
        requests.send(StoreRequest::Copy(reply_sender)).ok()?;
        Some(reply)
    }

    fn lock_store_thread(&self) -> MutexGuard<'_, Option<StoreThread>> {
        self.store_thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the thread after earlier commands, and frees the data directory.
    fn close(&self) {
        let Some(StoreThread { requests, thread }) = self.lock_store_thread().take() else {
            return;
        };
        // The thread ends when the channel has no sender left and is empty, so earlier commands are
        // still written.
        drop(requests);
        if thread.join().is_err() {
            tracing::error!("store: thread panicked");
        }
    }
}

impl Drop for ControllerState {
    fn drop(&mut self) {
        self.close();
    }
}
