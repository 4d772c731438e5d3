//! Serving calls on Python threads.

use std::num::NonZeroUsize;

use nearpath::blocking::{BodyUnwanted, ThreadEndpoint};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use crate::endpoint::{run_detached, swap_endpoint};
use crate::error::to_python_error;
use crate::messages::{self, Request};
use crate::payload;
use crate::stream::close_generator;

/// Serves calls until SIGTERM or SIGINT. With stream, handlers run as soon as a request begins.
#[pyfunction]
#[pyo3(signature = (handler, /, *, threads=1, stream=false))]
pub(crate) fn serve(
    py: Python<'_>,
    handler: Py<PyAny>,
    threads: usize,
    stream: bool,
) -> PyResult<()> {
    let threads = NonZeroUsize::new(threads)
        .ok_or_else(|| PyValueError::new_err("invalid number of threads 0: expected 1 or more"))?;
    // Detached while it waits: handlers attach again for each call.
    let served = py.detach(|| {
        let endpoint = ThreadEndpoint::default();
        let mut endpoint = if stream {
            endpoint.streaming()
        } else {
            endpoint
        };
        let handler = |endpoint: &mut ThreadEndpoint, request| {
            swap_endpoint(endpoint); // the handler's calls use the serving endpoint
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
        .and_then(|returned| messages::read_response(&returned));
    match returned {
        Ok((response, None)) => response,
        Ok((response, Some(pieces))) => write_stream(response, &pieces),
        Err(raised) => {
            // The caller gets the exception's text; the traceback goes to the function's log.
            let text = raised.to_string();
            raised.print(py);
            nearpath::Response::new(text).with_status(500)
        }
    }
}

/// Streams a response. After an exception the reader gets an error, never a normal end.
fn write_stream(head: nearpath::Response, pieces: &Bound<'_, PyAny>) -> nearpath::Response {
    let written = pieces
        .try_iter()
        .and_then(|iterator| write_pieces(head, iterator));
    match written {
        Ok(Ok(())) => run_detached(pieces.py(), ThreadEndpoint::finish_response),
        // The caller has gone: the generator should run its cleanup now.
        Ok(Err(BodyUnwanted)) => close_generator(pieces),
        // The response is not finished, so its reader gets an error.
        Err(raised) => raised.print(pieces.py()),
    }
    nearpath::Response::new("") // ignored: the response was streamed already
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
