//! Executor that keeps hyper's tasks on the thread that spawned them.

use std::future::Future;

/// Spawns HTTP/2's tasks on the current thread's `tokio::task::LocalSet`, so that nothing in them
/// has to be `Send`. Panics outside of a `LocalSet`.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalExec;

impl<F> hyper::rt::Executor<F> for LocalExec
where
    F: Future<Output = ()> + 'static,
{
    fn execute(&self, task: F) {
        // The handle is dropped: the task ends with its connection.
        tokio::task::spawn_local(task);
    }
}
