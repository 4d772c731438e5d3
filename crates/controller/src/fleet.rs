//! What the controller needs from whoever runs the functions.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use nearpath_types::status::UsageStatus;
use nearpath_types::{DesiredState, FunctionId, LogLine, LogQuery, ObservedFunction};
use tokio::sync::mpsc;

/// The node and the gateway, seen from above. Every method is quick; none waits for an instance or a disk.
pub trait Fleet: Send + Sync + 'static {
    /// Takes the whole truth; when it returns, calls are routed by it. Called in order, from one thread that is not a
    /// runtime's, within a tokio runtime's context.
    fn apply_desired(&self, desired: DesiredState);
    /// What runs now.
    fn observed_functions(&self) -> Arc<Vec<ObservedFunction>>;
    /// Log lines. The stream ends when there are no more, or goes on until the receiver is dropped when asked to
    /// follow.
    fn read_logs(&self, query: LogQuery) -> mpsc::Receiver<LogLine>;
    /// CPU and memory in use by a function.
    fn function_usage(&self, id: FunctionId) -> BoxFuture<'static, UsageStatus>;
    /// Requests that ended since the gateway started, those of other functions through shared memory too.
    fn invocation_count(&self, id: &FunctionId) -> u64;
}
