//! Calls: each thread of Python is a party of its own, from its first call on.

use std::cell::RefCell;

use nearpath::blocking::ThreadEndpoint;
use nearpath::{BodyDraft, Error};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyTuple};

use crate::buffer::Buffer;
use crate::error::raise;
use crate::messages::Response;
use crate::stream::{Reading, collect, is_pieces};
use crate::{ask, payload};

thread_local! {
    /// While a handler runs, the party that serves.
    static PARTY: RefCell<ThreadEndpoint> = RefCell::new(ThreadEndpoint::default().interrupted_by(interrupted));
    /// What a signal's handler raised while a call waited.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Has Python handle signals that have come: on its main thread, others have none.
fn interrupted() -> bool {
    let raised = Python::attach(|py| py.check_signals().err());
    let stops = raised.is_some();
    if stops {
        RAISED.set(raised);
    }
    stops || is_raised()
}

/// Whether something was raised that has not been told of.
fn is_raised() -> bool {
    RAISED.with_borrow(Option::is_some)
}

/// Exchanges this thread's party for another.
pub(crate) fn swap(party: &mut ThreadEndpoint) {
    PARTY.with_borrow_mut(|own| std::mem::swap(own, party));
}

/// In the child of a fork, on its only thread: both processes must not read one ring, or one connection.
#[pyfunction]
pub(crate) fn forked() {
    PARTY.with(|party| party.try_borrow_mut().map(|mut party| party.reset_after_fork()).ok());
    RAISED.take();
}

/// Works with this thread's party, other threads of Python running meanwhile.
pub(crate) fn with<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut ThreadEndpoint) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let outcome = still(py, work);
    match RAISED.take() {
        Some(raised) => Err(raised), // and what waited was given up
        None => outcome.map_err(|error| raise(py, &error)),
    }
}

/// As [`with`], for what does not fail.
pub(crate) fn still<T: Send>(py: Python<'_>, work: impl FnOnce(&mut ThreadEndpoint) -> T + Send) -> T {
    py.detach(|| PARTY.with_borrow_mut(work))
}

/// So many zeros to write a payload in, where it goes out.
#[pyfunction]
#[pyo3(signature = (bytes, /))]
pub(crate) fn buffer(py: Python<'_>, bytes: usize) -> PyResult<Buffer> {
    let draft = with(py, |party| Ok(party.draft_body_in_slot(bytes)))?;
    draft.or_else(|| private(bytes)).map(Buffer::new).ok_or_else(|| PyMemoryError::new_err("no memory for the buffer"))
}

fn private(bytes: usize) -> Option<BodyDraft> {
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
        return exchange(py, name, payload, stream, how);
    }
    let ask = ask::read(py, how)?;
    let payload = payload.map(payload::read).transpose()?.unwrap_or_default();
    with(py, |party| party.call(name, payload, &ask)).map(Response::new)
}

/// A call whose body goes, or whose answer comes, bit by bit.
fn exchange(
    py: Python<'_>,
    name: &str,
    payload: Option<&Bound<'_, PyAny>>,
    stream: bool,
    how: Option<&Bound<'_, PyDict>>,
) -> PyResult<Response> {
    let ask = ask::read(py, how)?;
    let pieces = payload.map(one_or_more).transpose()?;
    let mut exchange = with(py, |party| party.open_call(name, &ask))?;
    if pieces.is_none() {
        still(py, |party| party.finish_body(&mut exchange));
    }
    let (response, reading) = Reading::begin(py, exchange, pieces)?;
    if stream {
        return Ok(Response::read(response, reading));
    }
    let body = collect(py, || reading.part(py))?;
    Ok(Response::new(response.with_payload(body)))
}

/// The pieces of a payload: those that it yields, or itself.
fn one_or_more(payload: &Bound<'_, PyAny>) -> PyResult<Py<PyIterator>> {
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
    let ask = ask::read(py, how)?;
    let payload = payload.map(payload::read).transpose()?.unwrap_or_default();
    with(py, |party| party.call_later(name, payload, &ask))
}

/// The fields with which another client hands on what the handler that runs was given: traceparent and x-timeout.
#[pyfunction]
pub(crate) fn handed_on(py: Python<'_>) -> Vec<(&'static str, String)> {
    still(py, |party| party.propagated_fields())
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
    let ask = ask::read(py, how)?;
    let mut wanted = Vec::with_capacity(calls.len());
    for each in calls {
        let (name, payload): (String, Bound<'_, PyAny>) = each.extract()?;
        wanted.push((name, payload::read(&payload)?));
    }
    let outcomes = with(py, |party| {
        let begun: Vec<_> = wanted.into_iter().map(|(name, payload)| party.begin_call(&name, payload, &ask)).collect();
        let outcomes = begun.into_iter().map(|pending| match pending {
            Ok(pending) if is_raised() => {
                party.cancel_call(pending);
                None
            }
            pending => Some(pending.and_then(|pending| party.wait_response(pending))),
        });
        Ok(outcomes.collect::<Vec<_>>().into_iter().flatten().collect::<Vec<_>>())
    })?;
    let told = outcomes.into_iter().map(|outcome| match outcome {
        Ok(response) => Ok(Py::new(py, Response::new(response))?.into_any()),
        Err(error) if return_errors => Ok(raise(py, &error).into_value(py).into_any()),
        Err(error) => Err(raise(py, &error)),
    });
    told.collect()
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
    let ask = ask::read(py, how)?;
    let payload = payload.map(payload::read).transpose()?.unwrap_or_default();
    with(py, |party| party.send_event(name, payload, &ask))
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
    let ask = ask::read(py, how)?;
    let payload = payload.map(payload::read).transpose()?.unwrap_or_default();
    let published = with(py, |party| party.publish_event(topic, payload, &ask))?;
    Ok(Published { sent: published.sent, missed: published.missed })
}
