//! Serving on a thread of Python.

use nearpath::blocking::Party;
use pyo3::prelude::*;

use crate::error::raise;
use crate::messages::{self, Request};
use crate::party::swap;

/// Serves until the process is told to stop (SIGTERM, SIGINT).
#[pyfunction]
pub(crate) fn serve(py: Python<'_>, handler: Py<PyAny>) -> PyResult<()> {
    let served = py.detach(|| {
        Party::default().serve(|party, request| {
            swap(party); // the handler's calls go through the party that serves
            let response = Python::attach(|py| handle(py, &handler, request));
            swap(party);
            response
        })
    });
    served.map_err(|error| raise(py, &error))
}

fn handle(py: Python<'_>, handler: &Py<PyAny>, request: nearpath::Request) -> nearpath::Response {
    let returned = handler.bind(py).call1((Request(request),)).and_then(|returned| messages::answer(&returned));
    returned.unwrap_or_else(|raised| {
        let text = raised.to_string();
        raised.print(py);
        nearpath::Response::new(text).with_status(500)
    })
}
