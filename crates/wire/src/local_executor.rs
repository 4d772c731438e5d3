//! Where hyper's own tasks go: the thread that made them.

use std::future::Future;

/// Runs HTTP/2's tasks on the current thread's `tokio::task::LocalSet`, so that nothing in them has to be `Send`.
/// Panics outside of one.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalExec;

impl<F> hyper::rt::Executor<F> for LocalExec
where
    F: Future<Output = ()> + 'static,
{
    fn execute(&self, task: F) {
        tokio::task::spawn_local(task);
    }
}
