//! `nearpath.Request` and `nearpath.Response`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use nearpath::HeaderFields;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyMemoryView, PyTuple};

use crate::calls::with_endpoint;
use crate::error::to_python_error;
use crate::stream::{
    RequestPartIterator, ResponsePartIterator, StreamReader, collect_parts, is_pieces,
};
use crate::view::memoryview;
use crate::{call_options, payload};

/// A call that came in.
#[pyclass(frozen, module = "nearpath")]
pub(crate) struct Request(Mutex<nearpath::Request>);

impl Request {
    pub(crate) fn new(request: nearpath::Request) -> Self {
        Self(Mutex::new(request))
    }

    fn lock_request(&self) -> MutexGuard<'_, nearpath::Request> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next part of the body. The lock is not held while the interpreter's is waited for.
    pub(crate) fn next_part(&self, py: Python<'_>) -> PyResult<Option<Bytes>> {
        with_endpoint(py, |endpoint| {
            endpoint.next_part(&mut self.lock_request()).transpose()
        })
    }
}

#[pymethods]
impl Request {
    /// The method; POST when the caller says nothing.
    #[getter]
    fn method(&self) -> String {
        self.lock_request().method().to_owned()
    }

    /// Path and query after the function's name.
    #[getter]
    fn path(&self) -> String {
        self.lock_request().path().to_owned()
    }

    /// The header fields; of a name that comes more than once the first value.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        header_dict(py, self.lock_request().head())
    }

    /// The payload where it lies, read-only; it stays for as long as somebody looks at it. With serve(…, stream=True) what was
    /// not read of it: it is waited for, and put together.
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        if self.lock_request().is_partial() {
            let body = collect_parts(py, || self.next_part(py))?;
            self.lock_request().put_back(body);
        }
        let body = self.lock_request().share_body();
        memoryview(py, body)
    }

    /// The payload as it comes, with serve(…, stream=True): an iterator of memoryviews.
    #[getter]
    fn stream(slf: Bound<'_, Self>) -> RequestPartIterator {
        RequestPartIterator::new(slf.unbind())
    }

    /// NAME.NAMESPACE of the function that calls, as the node says; None: the gateway.
    #[getter]
    fn caller(&self) -> Option<String> {
        self.lock_request().caller().map(str::to_owned)
    }

    /// "shm" or "http": the way that it came.
    #[getter]
    fn came_over(&self) -> &'static str {
        self.lock_request().arrival_path().name()
    }

    /// One way: the answer goes nowhere.
    #[getter]
    fn is_event(&self) -> bool {
        self.lock_request().is_event()
    }

    /// The topic of an event that was published; None for everything else.
    #[getter]
    fn topic(&self) -> Option<String> {
        self.lock_request().topic().map(str::to_owned)
    }

    /// Seconds that the caller still waits; None: it did not say.
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

/// An answer: one that came, or that of a handler.
#[pyclass(frozen, module = "nearpath")]
pub(crate) struct Response {
    inner: nearpath::Response,
    /// What its body is made of, of a handler's answer: an iterable.
    pieces: Option<Py<PyAny>>,
    /// How the rest of its body is read, of an answer that comes bit by bit.
    reading: Option<StreamReader>,
    /// That body, once it was put together.
    whole: Mutex<Option<Bytes>>,
}

impl Response {
    pub(crate) fn new(inner: nearpath::Response) -> Self {
        Self {
            inner,
            pieces: None,
            reading: None,
            whole: Mutex::default(),
        }
    }

    pub(crate) fn with_reader(inner: nearpath::Response, stream_reader: StreamReader) -> Self {
        Self {
            reading: Some(stream_reader),
            ..Self::new(inner)
        }
    }

    pub(crate) fn next_part(&self, py: Python<'_>) -> PyResult<Option<Bytes>> {
        self.reading
            .as_ref()
            .map_or(Ok(None), |reading| reading.next_part(py))
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
        let pieces = body
            .filter(|body| is_pieces(body))
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

    /// The header fields; of a name that comes more than once the first value.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        header_dict(py, self.inner.head())
    }

    /// The payload where it lies, read-only; it stays for as long as somebody looks at it. Of an answer that comes bit by bit
    /// what was not read of it: it is waited for, and put together.
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        if self.reading.is_none() {
            return memoryview(py, self.inner.share_body());
        }
        let known = self
            .whole
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let body = known.map_or_else(|| collect_parts(py, || self.next_part(py)), Ok)?;
        *self.whole.lock().unwrap_or_else(PoisonError::into_inner) = Some(body.clone());
        memoryview(py, body.into())
    }

    /// The payload as it comes, of call(…, stream=True): an iterator of memoryviews.
    #[getter]
    fn stream(slf: Bound<'_, Self>) -> ResponsePartIterator {
        ResponsePartIterator::new(slf.unbind())
    }

    /// Reads no more: a callee that has more to say is told. At the end of a with block this happens by itself.
    fn close(&self, py: Python<'_>) {
        self.reading
            .iter()
            .for_each(|reading| reading.close_stream(py));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_why))]
    fn __exit__(&self, py: Python<'_>, _why: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    /// "shm" or "http": the way that the call took; None for an answer of one's own.
    #[getter]
    fn path(&self) -> Option<&'static str> {
        self.inner.path().map(|path| path.name())
    }

    /// What stood against a nearer path; None: there is no nearer one.
    #[getter]
    fn not_nearer(&self) -> Option<&str> {
        self.inner.not_nearer()
    }

    /// The header fields as they came, one pair each.
    #[getter]
    fn fields(&self) -> Vec<(String, String)> {
        self.inner
            .head()
            .iter()
            .map(|(name, value)| (name.to_owned(), latin1_text(value)))
            .collect()
    }

    /// Bytes of the whole body of an answer, as its sender said; None when it did not know.
    #[getter]
    fn length(&self) -> Option<u64> {
        self.inner.length()
    }

    /// The instance that answered, where it is known.
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

fn header_dict<'py>(py: Python<'py>, head: &HeaderFields) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    for (name, value) in head.iter() {
        if !fields.contains(name)? {
            fields.set_item(name, String::from_utf8_lossy(value))?;
        }
    }
    Ok(fields)
}

/// A field's value as Python's clients for HTTP read it: a character a byte.
fn latin1_text(value: &[u8]) -> String {
    value.iter().map(|byte| char::from(*byte)).collect()
}

/// What a handler answers: all of it, or the beginning and an iterable of pieces.
pub(crate) type HandlerAnswer<'py> = (nearpath::Response, Option<Bound<'py, PyAny>>);

/// What a handler returned: a Response, a payload, an iterator of payloads, (status, payload), or nothing.
pub(crate) fn read_answer<'py>(returned: &Bound<'py, PyAny>) -> PyResult<HandlerAnswer<'py>> {
    if let Ok(response) = returned.cast::<Response>() {
        let (response, py) = (response.get(), returned.py());
        let pieces = match (&response.pieces, &response.reading) {
            (Some(pieces), _) => Some(pieces.bind(py).clone()),
            (None, Some(_)) => Some(returned.getattr("stream")?), // passed on as it comes
            (None, None) => None,
        };
        return Ok((response.inner.clone(), pieces));
    }
    if returned.is_none() {
        return Ok((nearpath::Response::new(""), None));
    }
    if let Ok(pair) = returned.cast::<PyTuple>() {
        let (status, inner): (u16, Bound<'_, PyAny>) = pair.extract().map_err(|_| {
            PyTypeError::new_err("a handler that returns a tuple returns (status, payload)")
        })?;
        let (response, pieces) = read_answer(&inner)?;
        return Ok((response.with_status(status), pieces));
    }
    if is_pieces(returned) {
        return Ok((nearpath::Response::new(""), Some(returned.clone())));
    }
    payload::read_payload(returned).map(|body| (nearpath::Response::new(body), None))
}
