//! Tasks that end with their owner.

use std::future::Future;

use tokio::task::JoinHandle;

/// Task that is aborted when this is dropped.
#[derive(Debug)]
pub(super) struct AbortOnDrop(JoinHandle<()>);

impl AbortOnDrop {
    pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }

    /// Aborts the task and waits until it has ended.
    pub(super) async fn end(mut self) {
        self.0.abort();
        // An error means that it was aborted or has panicked: both end it.
        let _ = (&mut self.0).await;
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
