//! Endpoint of a thread. Each Python thread is an endpoint of its own from its first call on.

use std::cell::RefCell;

use nearpath::Error;
use nearpath::blocking::ThreadEndpoint;
use pyo3::prelude::*;

use crate::error::to_python_error;

thread_local! {
    /// Endpoint of this thread; while a handler runs, the serving one.
    static ENDPOINT: RefCell<ThreadEndpoint> = RefCell::new(ThreadEndpoint::default().interrupted_by(check_signals));
    /// Exception that a signal handler raised while a call waited.
    static PENDING_ERROR: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Lets Python handle pending signals. Only its main thread has any.
fn check_signals() -> bool {
    // Called from a detached thread, so the interpreter's lock is taken for the check only.
    let raised = Python::attach(|py| py.check_signals().err());
    let is_interrupted = raised.is_some();
    if is_interrupted {
        PENDING_ERROR.set(raised);
    }
    // An earlier exception must stop all further waits until it is raised.
    is_interrupted || has_pending_error()
}

/// Returns true if an exception waits to be raised.
pub(crate) fn has_pending_error() -> bool {
    PENDING_ERROR.with_borrow(Option::is_some)
}

/// Swaps this thread's endpoint with another one.
pub(crate) fn swap_endpoint(endpoint: &mut ThreadEndpoint) {
    // Swapped instead of shared: a handler's calls need exclusive access, like the serving loop.
    ENDPOINT.with_borrow_mut(|own| std::mem::swap(own, endpoint));
}

/// Resets the endpoint in the child of a fork, on its only thread: two processes must not use one
/// ring or connection.
#[pyfunction]
pub(crate) fn reset_after_fork() {
    ENDPOINT.with(|endpoint| {
        endpoint
            // A fork during a call finds the endpoint borrowed, and skips the reset.
            .try_borrow_mut()
            .map(|mut endpoint| endpoint.reset_after_fork())
            .ok()
    });
    // The exception belongs to the parent.
    PENDING_ERROR.take();
}

/// Runs `work` with this thread's endpoint and without the interpreter's lock.
pub(crate) fn with_endpoint<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut ThreadEndpoint) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let outcome = run_detached(py, work);
    // Taken first: the interrupted call's own error would hide the exception.
    match PENDING_ERROR.take() {
        Some(raised) => Err(raised), // the waiting call was cancelled
        None => outcome.map_err(|error| to_python_error(py, &error)),
    }
}

/// Runs `work` like [`with_endpoint`], for work that cannot fail.
pub(crate) fn run_detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut ThreadEndpoint) -> T + Send,
) -> T {
    py.detach(|| ENDPOINT.with_borrow_mut(work))
}
