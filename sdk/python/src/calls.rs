//! Calls: each thread of Python is a party of its own, from its first call on.

use std::cell::RefCell;

use nearpath::blocking::ThreadEndpoint;
use nearpath::{BodyDraft, Error};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyTuple};

use crate::buffer::Buffer;
use crate::error::to_python_error;
use crate::messages::Response;
use crate::stream::{StreamReader, collect_parts, is_pieces};
use crate::{call_options, payload};

thread_local! {
    /// While a handler runs, the party that serves.
    static ENDPOINT: RefCell<ThreadEndpoint> = RefCell::new(ThreadEndpoint::default().interrupted_by(check_signals));
    /// What a signal's handler raised while a call waited.
    static PENDING_ERROR: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Has Python handle signals that have come: on its main thread, others have none.
fn check_signals() -> bool {
    let raised = Python::attach(|py| py.check_signals().err());
    let stops = raised.is_some();
    if stops {
        PENDING_ERROR.set(raised);
    }
    stops || has_pending_error()
}

/// Whether something was raised that has not been told of.
fn has_pending_error() -> bool {
    PENDING_ERROR.with_borrow(Option::is_some)
}

/// Exchanges this thread's party for another.
pub(crate) fn swap_endpoint(endpoint: &mut ThreadEndpoint) {
    ENDPOINT.with_borrow_mut(|own| std::mem::swap(own, endpoint));
}

/// In the child of a fork, on its only thread: both processes must not read one ring, or one connection.
#[pyfunction]
pub(crate) fn forked() {
    ENDPOINT.with(|endpoint| {
        endpoint
            .try_borrow_mut()
            .map(|mut party| party.reset_after_fork())
            .ok()
    });
    PENDING_ERROR.take();
}

/// Works with this thread's party, other threads of Python running meanwhile.
pub(crate) fn with_endpoint<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut ThreadEndpoint) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let outcome = run_detached(py, work);
    match PENDING_ERROR.take() {
        Some(raised) => Err(raised), // and what waited was given up
        None => outcome.map_err(|error| to_python_error(py, &error)),
    }
}

/// As [`with_endpoint`], for what does not fail.
pub(crate) fn run_detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut ThreadEndpoint) -> T + Send,
) -> T {
    py.detach(|| ENDPOINT.with_borrow_mut(work))
}

/// So many zeros to write a payload in, where it goes out.
#[pyfunction]
#[pyo3(signature = (bytes, /))]
pub(crate) fn buffer(py: Python<'_>, bytes: usize) -> PyResult<Buffer> {
    let draft = with_endpoint(py, |endpoint| Ok(endpoint.draft_body_in_slot(bytes)))?;
    draft
        .or_else(|| heap_draft(bytes))
        .map(Buffer::new)
        .ok_or_else(|| PyMemoryError::new_err("no memory for the buffer"))
}

fn heap_draft(bytes: usize) -> Option<BodyDraft> {
    let mut own = Vec::new();
    own.try_reserve_exact(bytes).ok()?;
    own.resize(bytes, 0);
    Some(BodyDraft::from_vec(own))
}

/// Calls a function and waits for its answer, whatever status that has. A payload that is an iterator is sent as it yields; with
/// stream the answer is returned when it begins, and read as it comes.
#[pyfunction]
#[pyo3(signature = (name, payload=None, /, *, stream=false, **how))]
pub(crate) fn call(
    py: Python<'_>,
    name: &str,
    payload: Option<&Bound<'_, PyAny>>,
    stream: bool,
    how: Option<&Bound<'_, PyDict>>,
) -> PyResult<Response> {
    let pieces = payload.filter(|payload| is_pieces(payload));
    if stream || pieces.is_some() {
        return stream_call(py, name, payload, stream, how);
    }
    let options = call_options::read_options(py, how)?;
    let payload = payload
        .map(payload::read_payload)
        .transpose()?
        .unwrap_or_default();
    with_endpoint(py, |endpoint| endpoint.call(name, payload, &options)).map(Response::new)
}

/// A call whose body goes, or whose answer comes, bit by bit.
fn stream_call(
    py: Python<'_>,
    name: &str,
    payload: Option<&Bound<'_, PyAny>>,
    stream: bool,
    how: Option<&Bound<'_, PyDict>>,
) -> PyResult<Response> {
    let options = call_options::read_options(py, how)?;
    let pieces = payload.map(payload_pieces).transpose()?;
    let mut exchange = with_endpoint(py, |endpoint| endpoint.open_call(name, &options))?;
    if pieces.is_none() {
        run_detached(py, |endpoint| endpoint.finish_body(&mut exchange));
    }
    let (response, reading) = StreamReader::open(py, exchange, pieces)?;
    if stream {
        return Ok(Response::with_reader(response, reading));
    }
    let body = collect_parts(py, || reading.next_part(py))?;
    Ok(Response::new(response.with_payload(body)))
}

/// The pieces of a payload: those that it yields, or itself.
fn payload_pieces(payload: &Bound<'_, PyAny>) -> PyResult<Py<PyIterator>> {
    match payload.cast::<PyIterator>() {
        Ok(iterator) => Ok(iterator.clone().unbind()),
        Err(_) => Ok(PyTuple::new(payload.py(), [payload])?.try_iter()?.unbind()),
    }
}

/// Has a function called later: the gateway queues the call, and POSTs the answer to callback. The call's id; None when the gateway
/// gives none.
#[pyfunction]
#[pyo3(signature = (name, payload=None, /, **how))]
pub(crate) fn call_later(
    py: Python<'_>,
    name: &str,
    payload: Option<&Bound<'_, PyAny>>,
    how: Option<&Bound<'_, PyDict>>,
) -> PyResult<Option<String>> {
    let options = call_options::read_options(py, how)?;
    let payload = payload
        .map(payload::read_payload)
        .transpose()?
        .unwrap_or_default();
    with_endpoint(py, |endpoint| endpoint.call_later(name, payload, &options))
}

/// The fields with which another client hands on what the handler that runs was given: traceparent and x-timeout.
#[pyfunction]
pub(crate) fn handed_on(py: Python<'_>) -> Vec<(&'static str, String)> {
    run_detached(py, |endpoint| endpoint.propagated_fields())
}

/// Calls several functions at once: each is (name, payload). The answers come in the same order.
#[pyfunction]
#[pyo3(signature = (*calls, return_errors=false, **how))]
pub(crate) fn gather<'py>(
    py: Python<'py>,
    calls: &Bound<'py, PyTuple>,
    return_errors: bool,
    how: Option<&Bound<'py, PyDict>>,
) -> PyResult<Vec<Py<PyAny>>> {
    let options = call_options::read_options(py, how)?;
    let mut wanted = Vec::with_capacity(calls.len());
    for each in calls {
        let (name, payload): (String, Bound<'_, PyAny>) = each.extract()?;
        wanted.push((name, payload::read_payload(&payload)?));
    }
    let outcomes = with_endpoint(py, |endpoint| {
        let pending_calls: Vec<_> = wanted
            .into_iter()
            .map(|(name, payload)| endpoint.begin_call(&name, payload, &options))
            .collect();
        let outcomes = pending_calls.into_iter().map(|pending| match pending {
            Ok(pending) if has_pending_error() => {
                endpoint.cancel_call(pending);
                None
            }
            pending => Some(pending.and_then(|pending| endpoint.wait_response(pending))),
        });
        Ok(outcomes
            .collect::<Vec<_>>()
            .into_iter()
            .flatten()
            .collect::<Vec<_>>())
    })?;
    let results = outcomes.into_iter().map(|outcome| match outcome {
        Ok(response) => Ok(Py::new(py, Response::new(response))?.into_any()),
        Err(error) if return_errors => Ok(to_python_error(py, &error).into_value(py).into_any()),
        Err(error) => Err(to_python_error(py, &error)),
    });
    results.collect()
}

/// Sends an event: nobody answers.
#[pyfunction]
#[pyo3(signature = (name, payload=None, /, **how))]
pub(crate) fn notify(
    py: Python<'_>,
    name: &str,
    payload: Option<&Bound<'_, PyAny>>,
    how: Option<&Bound<'_, PyDict>>,
) -> PyResult<()> {
    let options = call_options::read_options(py, how)?;
    let payload = payload
        .map(payload::read_payload)
        .transpose()?
        .unwrap_or_default();
    with_endpoint(py, |endpoint| endpoint.send_event(name, payload, &options))
}

/// What became of an event for a topic.
#[pyclass(frozen, eq, module = "nearpath")]
#[derive(PartialEq)]
pub(crate) struct Published {
    /// Functions that subscribe and to one of whose instances it went.
    #[pyo3(get)]
    sent: usize,
    /// Functions that subscribe and whose instances had no room for it.
    #[pyo3(get)]
    missed: usize,
}

#[pymethods]
impl Published {
    #[new]
    fn new(sent: usize, missed: usize) -> Self {
        Self { sent, missed }
    }

    fn __repr__(&self) -> String {
        format!("Published(sent={}, missed={})", self.sent, self.missed)
    }
}

/// Sends an event to one instance of each function of the domain that subscribes to the topic.
#[pyfunction]
#[pyo3(signature = (topic, payload=None, /, **how))]
pub(crate) fn publish(
    py: Python<'_>,
    topic: &str,
    payload: Option<&Bound<'_, PyAny>>,
    how: Option<&Bound<'_, PyDict>>,
) -> PyResult<Published> {
    let options = call_options::read_options(py, how)?;
    let payload = payload
        .map(payload::read_payload)
        .transpose()?
        .unwrap_or_default();
    let published = with_endpoint(py, |endpoint| {
        endpoint.publish_event(topic, payload, &options)
    })?;
    Ok(Published {
        sent: published.sent,
        missed: published.missed,
    })
}
