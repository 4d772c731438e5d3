//! A machine of the lab, with one thread on which all that it does runs.

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use nearpath_testkit::lab::LabNode;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

/// Ends with its last task, or when it is dropped.
pub(crate) struct Machine {
    handle: Handle,
    end: Option<oneshot::Sender<()>>,
    joined: Option<JoinHandle<()>>,
}

impl Machine {
    /// Starts the thread, in the node.
    pub(crate) fn start(node: &LabNode) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        let name = node.name().to_owned();
        let joined = node.enter(move || {
            std::thread::Builder::new()
                .name(name)
                .spawn(|| run(runtime, ended))
        })?;
        Ok(Self {
            handle,
            end: Some(end),
            joined: Some(joined),
        })
    }

    /// Does something there. Sockets that it opens are the machine's.
    ///
    /// # Panics
    /// When `work` does.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        match self.handle.spawn(work).await {
            Ok(done) => done,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

fn run(runtime: Runtime, ended: oneshot::Receiver<()>) {
    let _ = runtime.block_on(ended);
    runtime.shutdown_timeout(Duration::from_millis(100));
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(joined) = self.joined.take() {
            let _ = joined.join();
        }
    }
}
