//! The controller's view of node and gateway.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use nearpath_controller::{Fleet, HeldFolders};
use nearpath_gateway::Gateway;
use nearpath_node::{ArtifactHold, Node};
use nearpath_types::status::UsageStatus;
use nearpath_types::{
    AutoscalingStatus, DesiredState, FunctionId, FunctionMap, LogLine, LogQuery, ObservedFunction,
    Revision,
};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use crate::autoscaling::AutoscalerHandle;

/// A change is acknowledged after this time even if the gateway has not taken it over.
const APPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// The fleet of one machine.
pub(crate) struct LocalFleet {
    pub(crate) node: Arc<Node>,
    pub(crate) gateway: Gateway,
    pub(crate) autoscaler: Arc<AutoscalerHandle>,
    /// Version of the last snapshot that the gateway uses.
    pub(crate) published: watch::Receiver<u64>,
    pub(crate) runtime: Handle,
}

impl Fleet for LocalFleet {
    fn apply_desired(&self, desired: DesiredState) {
        self.autoscaler.apply_desired(desired);
        // Wait for the gateway: whoever deploys a function and calls it at once must find it.
        let mut published = self.published.clone();
        let routed = async {
            let version = self.node.wait_published().await;
            // An error means that routing has ended.
            let _ = published.wait_for(|last| *last >= version).await;
        };
        let late = self
            .runtime
            // Called on the thread of the controller's store, never on one of the runtime.
            .block_on(async { tokio::time::timeout(APPLY_TIMEOUT, routed).await.is_err() });
        if late {
            tracing::warn!(timeout = ?APPLY_TIMEOUT, "gateway: a change is not applied yet");
        }
    }

    fn has_folder(&self, path: PathBuf) -> BoxFuture<'static, bool> {
        // The folder may be on a slow disk or another machine's.
        let found = self.runtime.spawn_blocking(move || path.is_dir());
        Box::pin(async move { found.await.unwrap_or(false) })
    }

    fn hold_folders(&self) -> Arc<dyn HeldFolders> {
        Arc::new(LocalFolders(self.node.hold_artifacts()))
    }

    fn observed_functions(&self) -> FunctionMap<ObservedFunction> {
        self.node.watch_observed().borrow().clone()
    }

    fn read_logs(&self, query: LogQuery) -> mpsc::Receiver<LogLine> {
        self.node.read_logs(query)
    }

    fn function_usage(&self, id: FunctionId) -> BoxFuture<'static, UsageStatus> {
        let node = Arc::clone(&self.node);
        Box::pin(async move { node.read_usage(&id).await })
    }

    fn invocation_count(&self, id: &FunctionId) -> u64 {
        self.gateway
            .invocations(id)
            // Calls through shared memory bypass the gateway's counters.
            .saturating_add(self.node.call_totals(id).ended)
    }

    fn autoscaling(&self, id: &FunctionId) -> Option<AutoscalingStatus> {
        self.autoscaler.status(id)
    }

    fn continue_autoscaling(&self, id: &FunctionId, replicas: u32) {
        self.autoscaler.continue_from(id, replicas);
    }
}

/// The node's copies, which a backup holds.
struct LocalFolders(ArtifactHold);

impl HeldFolders for LocalFolders {
    fn revision_folder(
        &self,
        function: FunctionId,
        revision: Revision,
        image: String,
    ) -> BoxFuture<'static, Result<PathBuf, String>> {
        let artifacts = Arc::clone(self.0.store());
        Box::pin(async move {
            let folder = artifacts.get_folder(&(function, revision), &image).await;
            folder.map_err(|error| error.to_string())
        })
    }
}
