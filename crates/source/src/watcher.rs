//! The task that polls a folder and applies what it says.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nearpath_controller::{CommandOutcome, Controller, ControllerError};
use nearpath_types::{NodeAddresses, NodeName};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

use crate::reader::{FolderReading, SourceLocation};
use crate::source_poller::SourcePoller;
use crate::status::SourceStatus;

/// Pause between polls in multiples of the time that a poll takes: at most a twentieth of a core is
/// spent, whatever the number of files.
const POLL_PAUSE_FACTOR: u32 = 20;

/// Settings of a source.
#[derive(Debug, Clone)]
pub struct SourceSettings {
    /// Name of this node in the list of nodes.
    pub node: NodeName,
    /// Folder with `nodes.yml` and stack files, absolute.
    pub folder: PathBuf,
    /// Folder of the secrets, absolute.
    pub secrets: PathBuf,
    /// Pause between two looks at the files. A change is applied after two equal ones.
    pub poll_interval: Duration,
}

impl SourceSettings {
    /// Pause between two looks at the files: programs that copy a folder rarely stop for as long.
    pub const POLL_INTERVAL: Duration = Duration::from_secs(1);
}

/// A running source. Dropping it ends the polls; the state stays.
#[derive(Debug)]
pub struct SourceHandle {
    status: watch::Receiver<SourceStatus>,
    nodes: watch::Receiver<Arc<NodeAddresses>>,
    task: JoinHandle<()>,
}

impl SourceHandle {
    /// Starts to poll. The controller's stored state is in use until the first reading, and the
    /// source applies to it whatever changes. Needs a running tokio runtime.
    pub fn start(settings: SourceSettings, controller: Controller) -> Self {
        let model = controller.model();
        let (status, watched_status) = watch::channel(SourceStatus {
            revision: model.revision,
            ..SourceStatus::default()
        });
        let (nodes, watched_nodes) = watch::channel(Arc::new(model.node_addresses()));
        let watcher = SourceWatcher {
            controller,
            status,
            nodes,
            warnings: Vec::new(),
        };
        Self {
            status: watched_status,
            nodes: watched_nodes,
            task: tokio::spawn(watcher.run(settings)),
        }
    }

    /// Returns the status as it changes.
    pub fn watch_status(&self) -> watch::Receiver<SourceStatus> {
        self.status.clone()
    }

    /// Returns the addresses of all nodes as they change, this node's too.
    pub fn watch_nodes(&self) -> watch::Receiver<Arc<NodeAddresses>> {
        self.nodes.clone()
    }
}

impl Drop for SourceHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct SourceWatcher {
    controller: Controller,
    status: watch::Sender<SourceStatus>,
    nodes: watch::Sender<Arc<NodeAddresses>>,
    /// Warnings of the last reading.
    warnings: Vec<String>,
}

/// Consequence of a reading for later polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextPoll {
    AfterChange,
    /// The files are good, but the disk was not.
    Retry,
    /// The controller is closed.
    Never,
}

impl SourceWatcher {
    async fn run(mut self, settings: SourceSettings) {
        let location = SourceLocation {
            node: settings.node,
            folder: settings.folder,
            secrets: settings.secrets,
        };
        let mut poller = blocking(move || SourcePoller::new(location)).await;
        loop {
            let begin = Instant::now();
            let (polled, reading) = blocking(move || {
                let reading = poller.poll();
                (poller, reading)
            })
            .await;
            poller = polled;
            let pause = settings
                .poll_interval
                .max(begin.elapsed() * POLL_PAUSE_FACTOR);
            if let Some(reading) = reading {
                match self.apply_reading(reading).await {
                    NextPoll::AfterChange => {}
                    NextPoll::Retry => poller.retry_reading(),
                    NextPoll::Never => return,
                }
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn apply_reading(&mut self, reading: FolderReading) -> NextPoll {
        self.log_warnings(reading.warnings);
        let state = match reading.state {
            Ok(state) => Arc::new(state),
            Err(faults) => {
                self.record_fault(&faults.to_string());
                return NextPoll::AfterChange;
            }
        };
        match self.controller.apply_declared(Arc::clone(&state)).await {
            Ok(outcome) => {
                self.record_applied(outcome, &state.nodes);
                NextPoll::AfterChange
            }
            Err(ControllerError::Closed) => NextPoll::Never,
            Err(error @ ControllerError::Refused(_)) => {
                self.record_fault(&error.to_string());
                NextPoll::AfterChange
            }
            Err(error @ ControllerError::Store(_)) => {
                self.record_fault(&error.to_string());
                NextPoll::Retry
            }
        }
    }

    fn log_warnings(&mut self, warnings: Vec<String>) {
        for warning in warnings.iter().filter(|one| !self.warnings.contains(one)) {
            tracing::warn!("source: {warning}");
        }
        self.warnings = warnings;
    }

    /// Logs a fault once, however often it is read.
    fn record_fault(&self, text: &str) {
        if self.status.borrow().fault.as_deref() == Some(text) {
            return;
        }
        // Before the log line: its reader finds the same in the metrics.
        self.status
            .send_modify(|status| status.fault = Some(text.into()));
        tracing::error!("source: not applied, the last good state stays: {text}");
    }

    fn record_applied(&self, outcome: CommandOutcome, nodes: &NodeAddresses) {
        // Nodes first: a reader of the status finds them.
        self.nodes.send_if_modified(|known| {
            let has_changed = **known != *nodes;
            if has_changed {
                *known = Arc::new(nodes.clone());
            }
            has_changed
        });
        let model = self.controller.model();
        let revision = model.revision;
        let had_fault = self.status.borrow().fault.is_some();
        if had_fault || outcome != CommandOutcome::Unchanged {
            let functions = model.functions.len();
            tracing::info!(functions, nodes = nodes.len(), %revision, "source: applied");
        }
        self.status.send_replace(SourceStatus {
            applied_at: Some(SystemTime::now()),
            revision,
            fault: None,
        });
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work)
        .await
        .map_err(JoinError::try_into_panic)
    {
        Ok(result) => result,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime is shutting down, and ends this task, too.
        Err(Err(_)) => std::future::pending().await,
    }
}
