//! `nearpath.Request` and `nearpath.Response`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use nearpath::HeaderFields;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyMemoryView, PyTuple};

use crate::endpoint::with_endpoint;
use crate::error::to_python_error;
use crate::stream::{StreamReader, collect_parts, is_iterator};
use crate::view::memoryview;
use crate::{call_options, payload};

/// A received call.
#[pyclass(frozen, module = "nearpath")]
pub(crate) struct Request(Mutex<nearpath::Request>);

impl Request {
    pub(crate) fn new(request: nearpath::Request) -> Self {
        Self(Mutex::new(request))
    }

    fn lock_request(&self) -> MutexGuard<'_, nearpath::Request> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next part of the body. Releases the lock while it waits for the interpreter's.
    pub(crate) fn next_part(&self, py: Python<'_>) -> PyResult<Option<Bytes>> {
        with_endpoint(py, |endpoint| {
            endpoint.next_part(&mut self.lock_request()).transpose()
        })
    }
}

#[pymethods]
impl Request {
    /// HTTP method; POST by default.
    #[getter]
    fn method(&self) -> String {
        self.lock_request().method().to_owned()
    }

    /// Path and query after the function's name.
    #[getter]
    fn path(&self) -> String {
        self.lock_request().path().to_owned()
    }

    /// Header fields; the first value of a repeated name.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        header_dict(py, self.lock_request().head())
    }

    /// The payload in place, read-only, valid while Python refers to it. With serve(…,
    /// stream=True): collects the unread rest.
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        // Collected on first access and put back, so that later ones see the whole body.
        if self.lock_request().is_partial() {
            let body = collect_parts(py, || self.next_part(py))?;
            self.lock_request().put_back(body);
        }
        let body = self.lock_request().share_body();
        memoryview(py, body)
    }

    /// The payload as it arrives, with serve(…, stream=True): an iterator of memoryviews.
    #[getter]
    fn stream(slf: Bound<'_, Self>) -> RequestPartIterator {
        RequestPartIterator::new(slf.unbind())
    }

    /// NAME.NAMESPACE of the calling function, as the node reports it; None: the gateway.
    #[getter]
    fn caller(&self) -> Option<String> {
        self.lock_request().caller().map(str::to_owned)
    }

    /// Path of the call: "shm" or "http".
    #[getter]
    fn arrival_path(&self) -> &'static str {
        self.lock_request().arrival_path().name()
    }

    /// True for an event, whose response is discarded.
    #[getter]
    fn is_event(&self) -> bool {
        self.lock_request().is_event()
    }

    /// Topic of a published event; None for everything else.
    #[getter]
    fn topic(&self) -> Option<String> {
        self.lock_request().topic().map(str::to_owned)
    }

    /// Seconds that the caller still waits; None: unknown.
    #[getter]
    fn time_left(&self) -> Option<f64> {
        self.lock_request()
            .time_left()
            .map(|left| left.as_secs_f64())
    }

    fn __repr__(&self) -> String {
        let request = self.lock_request();
        format!(
            "<nearpath.Request {} {} {} bytes>",
            request.method(),
            request.path(),
            request.body().len()
        )
    }
}

/// A response: received, or returned by a handler.
#[pyclass(frozen, module = "nearpath")]
pub(crate) struct Response {
    inner: nearpath::Response,
    /// Iterable of body pieces, for a handler's response.
    pieces: Option<Py<PyAny>>,
    /// Reader of the rest of a streamed response.
    reader: Option<StreamReader>,
    /// Collected body of a streamed response.
    collected_body: Mutex<Option<Bytes>>,
}

impl Response {
    pub(crate) fn new(inner: nearpath::Response) -> Self {
        Self {
            inner,
            pieces: None,
            reader: None,
            collected_body: Mutex::default(),
        }
    }

    pub(crate) fn with_reader(inner: nearpath::Response, reader: StreamReader) -> Self {
        Self {
            reader: Some(reader),
            ..Self::new(inner)
        }
    }

    pub(crate) fn next_part(&self, py: Python<'_>) -> PyResult<Option<Bytes>> {
        self.reader
            .as_ref()
            .map_or(Ok(None), |reader| reader.next_part(py))
    }
}

#[pymethods]
impl Response {
    #[new]
    #[pyo3(signature = (body=None, status=200, headers=None))]
    fn make(
        body: Option<&Bound<'_, PyAny>>,
        status: u16,
        headers: Option<&Bound<'_, PyMapping>>,
    ) -> PyResult<Self> {
        // A generator is not read here: `serve` streams it.
        let pieces = body
            .filter(|body| is_iterator(body))
            .map(|body| body.clone().unbind());
        let body = body
            .filter(|_| pieces.is_none())
            .map(payload::read_payload)
            .transpose()?
            .unwrap_or_default();
        let mut head = HeaderFields::default();
        for item in headers
            .map(|headers| headers.items())
            .transpose()?
            .iter()
            .flatten()
        {
            let (name, value): (String, Bound<'_, PyAny>) = item.extract()?;
            let pushed =
                call_options::with_field_value(&value, |value| head.push_field(&name, value))?;
            pushed.map_err(|error| to_python_error(item.py(), &error))?;
        }
        let inner = nearpath::Response::new(body)
            .with_status(status)
            .with_head(head);
        Ok(Self {
            pieces,
            ..Self::new(inner)
        })
    }

    /// HTTP status.
    #[getter]
    fn status(&self) -> u16 {
        self.inner.status()
    }

    /// Header fields; the first value of a repeated name.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        header_dict(py, self.inner.head())
    }

    /// The payload in place, read-only, valid while Python refers to it. Of a streamed response:
    /// collects the unread rest.
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        if self.reader.is_none() {
            return memoryview(py, self.inner.share_body());
        }
        let collected = self
            .collected_body
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let body = collected.map_or_else(|| collect_parts(py, || self.next_part(py)), Ok)?;
        *self
            .collected_body
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(body.clone());
        memoryview(py, body.into())
    }

    /// The payload as it arrives, of call(…, stream=True): an iterator of memoryviews.
    #[getter]
    fn stream(slf: Bound<'_, Self>) -> ResponsePartIterator {
        ResponsePartIterator::new(slf.unbind())
    }

    /// Stops reading and cancels the rest at the callee. The end of a with block calls it.
    fn close(&self, py: Python<'_>) {
        self.reader
            .iter()
            .for_each(|reader| reader.close_stream(py));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    /// Path of the call: "shm" or "http"; None for a response of this program.
    #[getter]
    fn path(&self) -> Option<&'static str> {
        self.inner.path().map(|path| path.name())
    }

    /// Obstacle of the next shorter path; None: there is no shorter one.
    #[getter]
    fn obstacle(&self) -> Option<&str> {
        self.inner.obstacle()
    }

    /// All header fields in order, as pairs.
    #[getter]
    fn fields(&self) -> Vec<(String, String)> {
        self.inner
            .head()
            .iter()
            .map(|(name, value)| (name.to_owned(), latin1_text(value)))
            .collect()
    }

    /// Announced length of the whole body in bytes; None if unknown.
    #[getter]
    fn length(&self) -> Option<u64> {
        self.inner.length()
    }

    /// Instance that responded, if known.
    #[getter]
    fn instance(&self) -> Option<u64> {
        self.inner.instance()
    }

    fn __repr__(&self) -> String {
        let path = self.inner.path().map_or("own", |path| path.name());
        format!(
            "<nearpath.Response {} {} bytes, {path}>",
            self.inner.status(),
            self.inner.body().len()
        )
    }
}

/// Iterator over the parts of a request: `request.stream`.
#[pyclass(frozen, module = "nearpath", name = "Parts")]
pub(crate) struct RequestPartIterator(Py<Request>);

#[pymethods]
impl RequestPartIterator {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyMemoryView>>> {
        self.0
            .get()
            .next_part(py)?
            .map(|part| memoryview(py, part.into()))
            .transpose()
    }
}

/// Iterator over the parts of a response: `response.stream`.
#[pyclass(frozen, module = "nearpath", name = "Parts")]
pub(crate) struct ResponsePartIterator(Py<Response>);

#[pymethods]
impl ResponsePartIterator {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyMemoryView>>> {
        self.0
            .get()
            .next_part(py)?
            .map(|part| memoryview(py, part.into()))
            .transpose()
    }
}

impl RequestPartIterator {
    pub(crate) fn new(request: Py<Request>) -> Self {
        Self(request)
    }
}

impl ResponsePartIterator {
    pub(crate) fn new(response: Py<Response>) -> Self {
        Self(response)
    }
}

fn header_dict<'py>(py: Python<'py>, head: &HeaderFields) -> PyResult<Bound<'py, PyDict>> {
    // Repeated names keep the first value: a dict cannot hold several.
    let fields = PyDict::new(py);
    for (name, value) in head.iter() {
        if !fields.contains(name)? {
            fields.set_item(name, String::from_utf8_lossy(value))?;
        }
    }
    Ok(fields)
}

/// Decodes a header value as Latin-1, like Python's HTTP clients.
fn latin1_text(value: &[u8]) -> String {
    // RFC 9110 section 5.5: bytes above 0x7f are opaque, and Latin-1 preserves them.
    value.iter().map(|byte| char::from(*byte)).collect()
}

/// Response of a handler: complete, or a head with an iterable of pieces.
pub(crate) type HandlerResponse<'py> = (nearpath::Response, Option<Bound<'py, PyAny>>);

/// Converts a handler's return value: a Response, a payload, an iterator of payloads, (status,
/// payload), or None.
pub(crate) fn read_response<'py>(returned: &Bound<'py, PyAny>) -> PyResult<HandlerResponse<'py>> {
    if let Ok(response) = returned.cast::<Response>() {
        let (response, py) = (response.get(), returned.py());
        let pieces = match (&response.pieces, &response.reader) {
            (Some(pieces), _) => Some(pieces.bind(py).clone()),
            (None, Some(_)) => Some(returned.getattr("stream")?), // forwarded as it arrives
            (None, None) => None,
        };
        return Ok((response.inner.clone(), pieces));
    }
    if returned.is_none() {
        return Ok((nearpath::Response::new(""), None));
    }
    if let Ok(pair) = returned.cast::<PyTuple>() {
        // The first element must be a status, so other tuples are no valid responses.
        let (status, inner): (u16, Bound<'_, PyAny>) = pair.extract().map_err(|_| {
            PyTypeError::new_err("invalid tuple from a handler: expected (status, payload)")
        })?;
        let (response, pieces) = read_response(&inner)?;
        return Ok((response.with_status(status), pieces));
    }
    if is_iterator(returned) {
        return Ok((nearpath::Response::new(""), Some(returned.clone())));
    }
    payload::read_payload(returned).map(|body| (nearpath::Response::new(body), None))
}
