//! `nearpath.Request` and `nearpath.Response`.

use nearpath::Head;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyMemoryView, PyTuple};

use crate::error::raise;
use crate::view::memoryview;
use crate::{ask, payload};

/// A call that came in.
#[pyclass(frozen, module = "nearpath")]
pub(crate) struct Request(pub(crate) nearpath::Request);

#[pymethods]
impl Request {
    /// The method; POST when the caller says nothing.
    #[getter]
    fn method(&self) -> &str {
        self.0.method()
    }

    /// Path and query after the function's name.
    #[getter]
    fn path(&self) -> &str {
        self.0.path()
    }

    /// The header fields; of a name that comes more than once the first value.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        headers(py, self.0.head())
    }

    /// The payload where it lies, read-only; it stays for as long as somebody looks at it.
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        memoryview(py, self.0.share_body())
    }

    /// NAME.NAMESPACE of the function that calls, as the node says; None: the gateway.
    #[getter]
    fn caller(&self) -> Option<&str> {
        self.0.caller()
    }

    /// "shm" or "http": the way that it came.
    #[getter]
    fn came_over(&self) -> &'static str {
        self.0.came_over().name()
    }

    /// One way: the answer goes nowhere.
    #[getter]
    fn is_event(&self) -> bool {
        self.0.is_event()
    }

    /// Seconds that the caller still waits; None: it did not say.
    #[getter]
    fn time_left(&self) -> Option<f64> {
        self.0.time_left().map(|left| left.as_secs_f64())
    }

    fn __repr__(&self) -> String {
        format!("<nearpath.Request {} {} {} bytes>", self.0.method(), self.0.path(), self.0.body().len())
    }
}

/// An answer: one that came, or that of a handler.
#[pyclass(frozen, module = "nearpath")]
pub(crate) struct Response(pub(crate) nearpath::Response);

#[pymethods]
impl Response {
    #[new]
    #[pyo3(signature = (body=None, status=200, headers=None))]
    fn new(body: Option<&Bound<'_, PyAny>>, status: u16, headers: Option<&Bound<'_, PyMapping>>) -> PyResult<Self> {
        let body = body.map(payload::read).transpose()?.unwrap_or_default();
        let mut head = Head::default();
        for item in headers.map(|headers| headers.items()).transpose()?.iter().flatten() {
            let (name, value): (String, Bound<'_, PyAny>) = item.extract()?;
            let pushed = ask::field(&value, |value| head.push(&name, value))?;
            pushed.map_err(|error| raise(item.py(), &error))?;
        }
        Ok(Self(nearpath::Response::new(body).with_status(status).with_head(head)))
    }

    /// HTTP status.
    #[getter]
    fn status(&self) -> u16 {
        self.0.status()
    }

    /// The header fields; of a name that comes more than once the first value.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        headers(py, self.0.head())
    }

    /// The payload where it lies, read-only; it stays for as long as somebody looks at it.
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        memoryview(py, self.0.share_body())
    }

    /// "shm" or "http": the way that the call took; None for an answer of one's own.
    #[getter]
    fn path(&self) -> Option<&'static str> {
        self.0.path().map(|path| path.name())
    }

    /// The instance that answered, where it is known.
    #[getter]
    fn instance(&self) -> Option<u64> {
        self.0.instance()
    }

    fn __repr__(&self) -> String {
        let path = self.0.path().map_or("own", |path| path.name());
        format!("<nearpath.Response {} {} bytes, {path}>", self.0.status(), self.0.body().len())
    }
}

fn headers<'py>(py: Python<'py>, head: &Head) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    for (name, value) in head.iter() {
        if !fields.contains(name)? {
            fields.set_item(name, String::from_utf8_lossy(value))?;
        }
    }
    Ok(fields)
}

/// What a handler returned: a Response, a payload, (status, payload), or nothing.
pub(crate) fn answer(returned: &Bound<'_, PyAny>) -> PyResult<nearpath::Response> {
    if let Ok(response) = returned.cast::<Response>() {
        return Ok(response.get().0.clone());
    }
    if returned.is_none() {
        return Ok(nearpath::Response::new(""));
    }
    if let Ok(pair) = returned.cast::<PyTuple>() {
        let (status, inner): (u16, Bound<'_, PyAny>) = pair
            .extract()
            .map_err(|_| PyTypeError::new_err("a handler that returns a tuple returns (status, payload)"))?;
        return Ok(answer(&inner)?.with_status(status));
    }
    payload::read(returned).map(nearpath::Response::new)
}
