//! Serving on threads of Python.

use std::num::NonZeroUsize;

use nearpath::blocking::{BodyUnwanted, ThreadEndpoint};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use crate::error::raise;
use crate::messages::{self, Request};
use crate::party::{still, swap};
use crate::payload;
use crate::stream::shut;

/// Serves until the process is told to stop (SIGTERM, SIGINT). With stream a handler is called when a request begins.
#[pyfunction]
#[pyo3(signature = (handler, /, *, threads=1, stream=false))]
pub(crate) fn serve(py: Python<'_>, handler: Py<PyAny>, threads: usize, stream: bool) -> PyResult<()> {
    let threads = NonZeroUsize::new(threads).ok_or_else(|| PyValueError::new_err("threads is at least 1"))?;
    let served = py.detach(|| {
        let party = ThreadEndpoint::default();
        let mut party = if stream { party.streaming() } else { party };
        let handler = |party: &mut ThreadEndpoint, request| {
            swap(party); // the handler's calls go through the party that serves
            let response = Python::attach(|py| handle(py, &handler, request));
            swap(party);
            response
        };
        if threads.get() == 1 { party.serve_calls(handler) } else { party.serve_on(threads, handler) }
    });
    served.map_err(|error| raise(py, &error))
}

fn handle(py: Python<'_>, handler: &Py<PyAny>, request: nearpath::Request) -> nearpath::Response {
    let returned = handler.bind(py).call1((Request::new(request),)).and_then(|returned| messages::answer(&returned));
    match returned {
        Ok((response, None)) => response,
        Ok((response, Some(pieces))) => write(response, &pieces),
        Err(raised) => {
            let text = raised.to_string();
            raised.print(py);
            nearpath::Response::new(text).with_status(500)
        }
    }
}

/// Writes an answer as it is made. What raises is broken off: its reader gets an error, never an end.
fn write(head: nearpath::Response, pieces: &Bound<'_, PyAny>) -> nearpath::Response {
    let written = pieces.try_iter().and_then(|iterator| write_all(head, iterator));
    match written {
        Ok(Ok(())) => still(pieces.py(), ThreadEndpoint::finish_response),
        Ok(Err(BodyUnwanted)) => shut(pieces),
        Err(raised) => raised.print(pieces.py()),
    }
    nearpath::Response::new("") // the answer has gone another way
}

fn write_all(head: nearpath::Response, pieces: Bound<'_, PyIterator>) -> PyResult<Result<(), BodyUnwanted>> {
    let py = pieces.py();
    if still(py, |party| party.begin_response(head)).is_err() {
        return Ok(Err(BodyUnwanted));
    }
    for piece in pieces {
        let piece = payload::read(&piece?)?;
        if still(py, |party| party.write_response(piece)).is_err() {
            return Ok(Err(BodyUnwanted));
        }
    }
    Ok(Ok(()))
}
