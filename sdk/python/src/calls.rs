//! Calls of functions.

use nearpath::BodyDraft;
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyTuple};

use crate::buffer::Buffer;
use crate::endpoint::{has_pending_error, run_detached, with_endpoint};
use crate::error::to_python_error;
use crate::messages::Response;
use crate::stream::{StreamReader, collect_parts, is_iterator};
use crate::{call_options, payload};

/// Creates a zeroed buffer for a payload, in shared memory if possible.
#[pyfunction]
#[pyo3(signature = (bytes, /))]
pub(crate) fn buffer(py: Python<'_>, bytes: usize) -> PyResult<Buffer> {
    let draft = with_endpoint(py, |endpoint| Ok(endpoint.draft_body_in_slot(bytes)))?;
    draft
        .or_else(|| heap_draft(bytes))
        .map(Buffer::new)
        .ok_or_else(|| PyMemoryError::new_err(format!("no memory for a buffer of {bytes} bytes")))
}

fn heap_draft(bytes: usize) -> Option<BodyDraft> {
    let mut zeros = Vec::new();
    // A huge size raises MemoryError instead of aborting the process.
    zeros.try_reserve_exact(bytes).ok()?;
    zeros.resize(bytes, 0);
    Some(BodyDraft::from_vec(zeros))
}

/// Calls a function and waits for its response, whatever its status. A payload that is an iterator
/// is sent as it yields. With stream the response is returned when it begins, and read as it
/// arrives.
#[pyfunction]
#[pyo3(signature = (name, payload=None, /, *, stream=false, **keywords))]
pub(crate) fn call(
    py: Python<'_>,
    name: &str,
    payload: Option<&Bound<'_, PyAny>>,
    stream: bool,
    keywords: Option<&Bound<'_, PyDict>>,
) -> PyResult<Response> {
    let pieces = payload.filter(|payload| is_iterator(payload));
    if stream || pieces.is_some() {
        return stream_call(py, name, payload, stream, keywords);
    }
    let options = call_options::read_options(py, keywords)?;
    let payload = payload
        .map(payload::read_payload)
        .transpose()?
        .unwrap_or_default();
    with_endpoint(py, |endpoint| endpoint.call(name, payload, &options)).map(Response::new)
}

/// Makes a call whose request or response is streamed.
fn stream_call(
    py: Python<'_>,
    name: &str,
    payload: Option<&Bound<'_, PyAny>>,
    stream: bool,
    keywords: Option<&Bound<'_, PyDict>>,
) -> PyResult<Response> {
    let options = call_options::read_options(py, keywords)?;
    let pieces = payload.map(payload_pieces).transpose()?;
    let mut exchange = with_endpoint(py, |endpoint| endpoint.open_call(name, &options))?;
    // Without a payload the request ends at once.
    if pieces.is_none() {
        run_detached(py, |endpoint| endpoint.finish_body(&mut exchange));
    }
    let (response, reader) = StreamReader::open(py, exchange, pieces)?;
    if stream {
        return Ok(Response::with_reader(response, reader));
    }
    // The caller wants a complete response, though the request was streamed.
    let body = collect_parts(py, || reader.next_part(py))?;
    Ok(Response::new(response.with_payload(body)))
}

/// Pieces of a payload: those that it yields, or itself.
fn payload_pieces(payload: &Bound<'_, PyAny>) -> PyResult<Py<PyIterator>> {
    match payload.cast::<PyIterator>() {
        Ok(iterator) => Ok(iterator.clone().unbind()),
        Err(_) => Ok(PyTuple::new(payload.py(), [payload])?.try_iter()?.unbind()),
    }
}

/// Queues a call at the gateway, which POSTs the response to callback. Returns the call's id; None
/// when the gateway gives none.
#[pyfunction]
#[pyo3(signature = (name, payload=None, /, **keywords))]
pub(crate) fn call_later(
    py: Python<'_>,
    name: &str,
    payload: Option<&Bound<'_, PyAny>>,
    keywords: Option<&Bound<'_, PyDict>>,
) -> PyResult<Option<String>> {
    let options = call_options::read_options(py, keywords)?;
    let payload = payload
        .map(payload::read_payload)
        .transpose()?
        .unwrap_or_default();
    with_endpoint(py, |endpoint| endpoint.call_later(name, payload, &options))
}

/// Header fields with which another client propagates the running handler's context: traceparent
/// and x-timeout.
#[pyfunction]
pub(crate) fn propagated_fields(py: Python<'_>) -> Vec<(&'static str, String)> {
    run_detached(py, |endpoint| endpoint.propagated_fields())
}

/// Calls several functions concurrently, each given as (name, payload). The responses have the same
/// order.
#[pyfunction]
#[pyo3(signature = (*calls, return_errors=false, **keywords))]
pub(crate) fn gather<'py>(
    py: Python<'py>,
    calls: &Bound<'py, PyTuple>,
    return_errors: bool,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<Vec<Py<PyAny>>> {
    let options = call_options::read_options(py, keywords)?;
    let mut requests = Vec::with_capacity(calls.len());
    for call in calls {
        let (name, payload): (String, Bound<'_, PyAny>) = call.extract()?;
        requests.push((name, payload::read_payload(&payload)?));
    }
    let outcomes = with_endpoint(py, |endpoint| {
        let pending_calls: Vec<_> = requests
            .into_iter()
            .map(|(name, payload)| endpoint.begin_call(&name, payload, &options))
            .collect();
        let outcomes = pending_calls.into_iter().map(|pending| match pending {
            // After an exception the remaining calls are cancelled instead of awaited.
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

/// Sends an event, which has no response.
#[pyfunction]
#[pyo3(signature = (name, payload=None, /, **keywords))]
pub(crate) fn notify(
    py: Python<'_>,
    name: &str,
    payload: Option<&Bound<'_, PyAny>>,
    keywords: Option<&Bound<'_, PyDict>>,
) -> PyResult<()> {
    let options = call_options::read_options(py, keywords)?;
    let payload = payload
        .map(payload::read_payload)
        .transpose()?
        .unwrap_or_default();
    with_endpoint(py, |endpoint| endpoint.send_event(name, payload, &options))
}

/// Delivery of an event to a topic.
#[pyclass(frozen, eq, module = "nearpath")]
#[derive(PartialEq)]
pub(crate) struct Published {
    /// Subscribed functions that received the event.
    #[pyo3(get)]
    sent: usize,
    /// Subscribed functions whose instances had no free slot.
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
#[pyo3(signature = (topic, payload=None, /, **keywords))]
pub(crate) fn publish(
    py: Python<'_>,
    topic: &str,
    payload: Option<&Bound<'_, PyAny>>,
    keywords: Option<&Bound<'_, PyDict>>,
) -> PyResult<Published> {
    let options = call_options::read_options(py, keywords)?;
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
