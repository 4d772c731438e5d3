//! Follows the files of a node: a renewed certificate or root is used without a restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_types::status::rfc3339::format_time;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::watch_state::{FilesRead, WatchEvent, WatchState};
use super::{NodeCredentials, NodeFiles, NodeTls, NodeTlsError};

/// Time between two looks at the files.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Loads the files of a folder and follows their changes, each `interval` ([`POLL_INTERVAL`] outside
/// of tests). A change counts once all three files fit together; until then the last good ones stay
/// in use, and the log names the fault. The log also warns of the certificate's end. Must run
/// inside a tokio runtime; the task ends when the last receiver is dropped.
///
/// # Errors
/// See [`NodeTlsError`].
pub fn watch_node_tls(
    folder: &Path,
    interval: Duration,
) -> Result<watch::Receiver<Arc<NodeTls>>, NodeTlsError> {
    super::files::warn_if_key_exposed(folder);
    let files = NodeFiles::read(folder)?;
    let credentials = NodeCredentials::from_files(folder, &files, SystemTime::now())?;
    let state = WatchState::new(folder, files, credentials.clone());
    let (sender, receiver) = watch::channel(Arc::new(NodeTls::new(credentials)?));
    let watcher = NodeTlsWatcher {
        folder: folder.to_owned(),
        state,
        sender,
    };
    tokio::spawn(watcher.run(interval));
    Ok(receiver)
}

struct NodeTlsWatcher {
    folder: PathBuf,
    state: WatchState,
    sender: watch::Sender<Arc<NodeTls>>,
}

impl NodeTlsWatcher {
    async fn run(mut self, interval: Duration) {
        let mut ticks = tokio::time::interval(interval);
        // After a suspend one look is enough.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.sender.closed() => return,
                _ = ticks.tick() => {}
            }
            let Some(read) = self.read_files().await else {
                return; // the runtime is shutting down
            };
            for event in self.state.observe(read, SystemTime::now()) {
                self.handle(event);
            }
        }
    }

    /// Reads contents, not times: a file system may give two versions the same time.
    async fn read_files(&self) -> Option<FilesRead> {
        let folder = self.folder.clone();
        // A network file system may block for long.
        let read = tokio::task::spawn_blocking(move || NodeFiles::read(&folder));
        read.await.ok()
    }

    fn handle(&self, event: WatchEvent) {
        let folder = self.folder.display();
        match event {
            WatchEvent::Renewed(credentials) => self.publish(*credentials),
            WatchEvent::Faulty(error) => {
                tracing::warn!(%folder, %error, "node certificate: the changed files cannot be used, the last good ones stay in use");
            }
            WatchEvent::Recovered => {
                tracing::info!(%folder, "node certificate: the files can be used again");
            }
            WatchEvent::Expiring { not_after } => {
                let node = self.sender.borrow().credentials().node().clone();
                let not_after = format_time(not_after);
                tracing::warn!(%folder, %node, %not_after, "node certificate ends soon or has ended: run nearpath ca issue for this node, and copy its folder here");
            }
        }
    }

    fn publish(&self, credentials: NodeCredentials) {
        super::files::warn_if_key_exposed(&self.folder);
        let (folder, node) = (self.folder.display(), credentials.node().clone());
        let (not_after, roots) = (
            format_time(credentials.validity().1),
            credentials.roots().len(),
        );
        let renewed = self.sender.borrow().renewed(credentials);
        match renewed {
            Ok(tls) => {
                self.sender.send_replace(Arc::new(tls));
                tracing::info!(%folder, %node, %not_after, roots, "node certificate: changed files are in use");
            }
            Err(error) => {
                tracing::warn!(%folder, %node, %error, "node certificate: the changed files cannot be used, the last good ones stay in use");
            }
        }
    }
}
