//! Interface of the controller to the node and the gateway.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use nearpath_types::status::UsageStatus;
use nearpath_types::{
    AutoscalingStatus, DesiredState, FunctionId, FunctionMap, LogLine, LogQuery, ObservedFunction,
    Revision,
};
use tokio::sync::mpsc;

/// The node and the gateway. Every method is quick; none waits for an instance or for a disk to write.
pub trait Fleet: Send + Sync + 'static {
    /// Applies the whole desired state, which shares what is unchanged with the one before; when it
    /// returns, calls are routed by it. Called in order, from one thread outside the runtime, within
    /// a tokio runtime's context.
    fn apply_desired(&self, desired: DesiredState);
    /// Returns whether the node can read a folder at this absolute path.
    fn has_folder(&self, path: PathBuf) -> BoxFuture<'static, bool>;
    /// Keeps all copies of deployed folders from removal while the value lives.
    fn hold_folders(&self) -> Arc<dyn HeldFolders>;
    /// Functions and instances that run now.
    fn observed_functions(&self) -> FunctionMap<ObservedFunction>;
    /// Log lines. With `follow`, the stream goes on until the receiver is dropped; else it ends
    /// after the last line.
    fn read_logs(&self, query: LogQuery) -> mpsc::Receiver<LogLine>;
    /// CPU and memory in use by a function.
    fn function_usage(&self, id: FunctionId) -> BoxFuture<'static, UsageStatus>;
    /// Requests that ended since the gateway started, including calls between functions through
    /// shared memory.
    fn invocation_count(&self, id: &FunctionId) -> u64;
    /// State of a function's autoscaler on this node; `None` without one.
    fn autoscaling(&self, _id: &FunctionId) -> Option<AutoscalingStatus> {
        None
    }
    /// Makes a function's autoscaler go on from a number of replicas. Without effect on others.
    fn continue_autoscaling(&self, _id: &FunctionId, _replicas: u32) {}
}

/// Copies of deployed folders, none of which is removed while the value lives.
pub trait HeldFolders: Send + Sync + 'static {
    /// Returns the folder that instances of a revision run from; copies it from `image` if none has
    /// started yet. The error is a text for the administrator.
    fn revision_folder(
        &self,
        function: FunctionId,
        revision: Revision,
        image: String,
    ) -> BoxFuture<'static, Result<PathBuf, String>>;
}
