//! Serving on threads of Python.

use std::num::NonZeroUsize;

use nearpath::blocking::{BodyUnwanted, ThreadEndpoint};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use crate::calls::{run_detached, swap_endpoint};
use crate::error::to_python_error;
use crate::messages::{self, Request};
use crate::payload;
use crate::stream::close_generator;

/// Serves until the process is told to stop (SIGTERM, SIGINT). With stream a handler is called when a request begins.
#[pyfunction]
#[pyo3(signature = (handler, /, *, threads=1, stream=false))]
pub(crate) fn serve(
    py: Python<'_>,
    handler: Py<PyAny>,
    threads: usize,
    stream: bool,
) -> PyResult<()> {
    let threads =
        NonZeroUsize::new(threads).ok_or_else(|| PyValueError::new_err("threads is at least 1"))?;
    let served = py.detach(|| {
        let endpoint = ThreadEndpoint::default();
        let mut endpoint = if stream {
            endpoint.streaming()
        } else {
            endpoint
        };
        let handler = |endpoint: &mut ThreadEndpoint, request| {
            swap_endpoint(endpoint); // the handler's calls go through the party that serves
            let response = Python::attach(|py| handle_request(py, &handler, request));
            swap_endpoint(endpoint);
            response
        };
        if threads.get() == 1 {
            endpoint.serve_calls(handler)
        } else {
            endpoint.serve_on(threads, handler)
        }
    });
    served.map_err(|error| to_python_error(py, &error))
}

fn handle_request(
    py: Python<'_>,
    handler: &Py<PyAny>,
    request: nearpath::Request,
) -> nearpath::Response {
    let returned = handler
        .bind(py)
        .call1((Request::new(request),))
        .and_then(|returned| messages::read_answer(&returned));
    match returned {
        Ok((response, None)) => response,
        Ok((response, Some(pieces))) => write_stream(response, &pieces),
        Err(raised) => {
            let text = raised.to_string();
            raised.print(py);
            nearpath::Response::new(text).with_status(500)
        }
    }
}

/// Writes an answer as it is made. What raises is broken off: its reader gets an error, never an end.
fn write_stream(head: nearpath::Response, pieces: &Bound<'_, PyAny>) -> nearpath::Response {
    let written = pieces
        .try_iter()
        .and_then(|iterator| write_pieces(head, iterator));
    match written {
        Ok(Ok(())) => run_detached(pieces.py(), ThreadEndpoint::finish_response),
        Ok(Err(BodyUnwanted)) => close_generator(pieces),
        Err(raised) => raised.print(pieces.py()),
    }
    nearpath::Response::new("") // the answer has gone another way
}

fn write_pieces(
    head: nearpath::Response,
    pieces: Bound<'_, PyIterator>,
) -> PyResult<Result<(), BodyUnwanted>> {
    let py = pieces.py();
    if run_detached(py, |endpoint| endpoint.begin_response(head)).is_err() {
        return Ok(Err(BodyUnwanted));
    }
    for piece in pieces {
        let piece = payload::read_payload(&piece?)?;
        if run_detached(py, |endpoint| endpoint.write_response(piece)).is_err() {
            return Ok(Err(BodyUnwanted));
        }
    }
    Ok(Ok(()))
}
