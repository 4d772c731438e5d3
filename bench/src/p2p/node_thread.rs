//! A machine of the lab, with one thread for all its work.

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use nearpath_testkit::lab::LabNode;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

/// A thread in a node; it ends with its last task, or when it is dropped.
pub(crate) struct NodeThread {
    handle: Handle,
    end: Option<oneshot::Sender<()>>,
    joined: Option<JoinHandle<()>>,
}

impl NodeThread {
    /// Starts the thread in the node.
    pub(crate) fn start(node: &LabNode) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        let name = node.name().to_owned();
        // The thread is created inside the namespace and inherits it; its tasks' sockets are the
        // machine's.
        let joined = node.enter(move || {
            std::thread::Builder::new()
                .name(name)
                .spawn(|| run_until_ended(runtime, ended))
        })?;
        Ok(Self {
            handle,
            end: Some(end),
            joined: Some(joined),
        })
    }

    /// Runs `work` in the node. Its sockets belong to the node.
    ///
    /// # Panics
    /// If `work` panics.
    pub(crate) async fn run_in_node<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        match self.handle.spawn(work).await {
            Ok(done) => done,
            // Tasks are never aborted here, so a failed join is a panic.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

fn run_until_ended(runtime: Runtime, ended: oneshot::Receiver<()>) {
    let _ = runtime.block_on(ended);
    // Blocking tasks could delay the shutdown without bound, and their results no longer matter.
    runtime.shutdown_timeout(Duration::from_millis(100));
}

impl Drop for NodeThread {
    fn drop(&mut self) {
        // The closed channel ends the thread; joining before that would wait for ever.
        drop(self.end.take());
        if let Some(joined) = self.joined.take() {
            let _ = joined.join();
        }
    }
}
