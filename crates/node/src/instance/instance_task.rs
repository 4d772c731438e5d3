//! A task beside the lifecycle of an instance.

use std::future::Future;

use tokio::task::JoinHandle;

/// Task that is aborted on drop.
#[derive(Debug)]
pub(crate) struct InstanceTask(JoinHandle<()>);

impl InstanceTask {
    /// Spawns a task.
    pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }
}

impl Drop for InstanceTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}
