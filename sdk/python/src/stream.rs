//! Bodies that come, or go, bit by bit: iterators on Python's side.

use std::sync::{Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use nearpath::blocking::{StreamEvent, StreamingCall};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyMemoryView};

use crate::calls::{run_detached, with_endpoint};
use crate::messages::{Request, Response};
use crate::payload;
use crate::view::memoryview;

/// The most of a body that is put together.
const MAX_BODY_BYTES: usize = 64 << 20;

/// Whether something is an iterator of pieces rather than a payload.
pub(crate) fn is_pieces(payload: &Bound<'_, PyAny>) -> bool {
    payload.cast::<PyIterator>().is_ok()
}

/// The parts of a message, as an iterator: `request.stream`.
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

/// The parts of an answer: `response.stream`.
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

/// Puts parts together.
pub(crate) fn collect_parts(
    py: Python<'_>,
    part: impl Fn() -> PyResult<Option<Bytes>>,
) -> PyResult<Bytes> {
    let Some(first) = part()? else {
        return Ok(Bytes::new());
    };
    let Some(mut next) = part()? else {
        return Ok(first);
    };
    let mut all = BytesMut::from(&first[..]);
    drop(first); // its slot is free
    loop {
        if all.len() + next.len() > MAX_BODY_BYTES {
            return Err(PyValueError::new_err(format!(
                "the body is larger than {MAX_BODY_BYTES} bytes: read its stream"
            )));
        }
        all.extend_from_slice(&next);
        py.check_signals()?;
        match part()? {
            Some(part) => next = part,
            None => return Ok(all.freeze()),
        }
    }
}

/// An exchange, and what its body is made of. One thread uses it, that which made the call.
pub(crate) struct StreamReader(Mutex<Option<ReaderState>>);

struct ReaderState {
    exchange: StreamingCall,
    pieces: Option<Py<PyIterator>>,
}

impl StreamReader {
    /// Begins a call, and waits until its answer begins; meanwhile the body is sent.
    pub(crate) fn open(
        py: Python<'_>,
        exchange: StreamingCall,
        pieces: Option<Py<PyIterator>>,
    ) -> PyResult<(nearpath::Response, Self)> {
        let mut state = ReaderState { exchange, pieces };
        loop {
            match state.run_step(py) {
                Ok(StreamEvent::Begun(response)) => {
                    return Ok((response, Self(Mutex::new(Some(state)))));
                }
                Ok(_) => {}
                Err(raised) => {
                    state.close_call(py);
                    return Err(raised);
                }
            }
        }
    }

    /// The next part; nothing at the end, or after it was closed.
    pub(crate) fn next_part(&self, py: Python<'_>) -> PyResult<Option<Bytes>> {
        let Some(mut state) = self.take_state() else {
            return Ok(None);
        };
        loop {
            match state.run_step(py) {
                Ok(StreamEvent::Part(part)) => {
                    *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
                    return Ok(Some(part));
                }
                Ok(StreamEvent::End) => {
                    state.close_call(py);
                    return Ok(None);
                }
                Ok(_) => {}
                Err(raised) => {
                    state.close_call(py);
                    return Err(raised);
                }
            }
        }
    }

    pub(crate) fn close_stream(&self, py: Python<'_>) {
        self.take_state()
            .into_iter()
            .for_each(|state| state.close_call(py));
    }

    fn take_state(&self) -> Option<ReaderState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl ReaderState {
    /// Waits for what comes next; writes when there is room.
    fn run_step(&mut self, py: Python<'_>) -> PyResult<StreamEvent> {
        let Self { exchange, pieces } = self;
        let writes = pieces.is_some();
        let step = with_endpoint(py, |endpoint| endpoint.next_event(exchange, writes))?;
        if let (StreamEvent::Writable, Some(iterator)) = (&step, pieces.as_ref()) {
            match iterator.bind(py).clone().next().transpose()? {
                Some(piece) => {
                    let piece = payload::read_payload(&piece)?;
                    run_detached(py, |endpoint| endpoint.write_chunk(exchange, piece).is_ok()); // not wanted: the next step says why
                }
                None => {
                    run_detached(py, |endpoint| endpoint.finish_body(exchange));
                    *pieces = None;
                }
            }
        }
        Ok(step)
    }

    /// Gives it up, if it has not come to its end. A generator is told as well.
    fn close_call(self, py: Python<'_>) {
        run_detached(py, |endpoint| endpoint.close_call(self.exchange));
        self.pieces
            .iter()
            .for_each(|pieces| close_generator(pieces.bind(py).as_any()));
    }
}

/// Ends a generator that nobody reads any more.
pub(crate) fn close_generator(pieces: &Bound<'_, PyAny>) {
    if pieces.hasattr("close").unwrap_or(false)
        && let Err(raised) = pieces.call_method0("close")
    {
        raised.print(pieces.py());
    }
}
