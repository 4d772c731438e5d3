//! Streamed bodies, which are iterators in Python.

use std::sync::{Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use nearpath::blocking::{StreamEvent, StreamingCall};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use crate::endpoint::{run_detached, with_endpoint};
use crate::payload;

/// Maximum size of a collected body in bytes.
const MAX_BODY_BYTES: usize = 64 << 20;

/// Returns true for an iterator of pieces, false for a payload.
pub(crate) fn is_iterator(payload: &Bound<'_, PyAny>) -> bool {
    payload.cast::<PyIterator>().is_ok()
}

/// Collects parts into one body.
pub(crate) fn collect_parts(
    py: Python<'_>,
    next_part: impl Fn() -> PyResult<Option<Bytes>>,
) -> PyResult<Bytes> {
    let Some(first) = next_part()? else {
        return Ok(Bytes::new());
    };
    // A body of one part is returned without a copy.
    let Some(mut part) = next_part()? else {
        return Ok(first);
    };
    let mut collected = BytesMut::from(&first[..]);
    drop(first); // frees its slot
    loop {
        if collected.len() + part.len() > MAX_BODY_BYTES {
            return Err(PyValueError::new_err(format!(
                "the body is longer than {MAX_BODY_BYTES} bytes: read its stream"
            )));
        }
        collected.extend_from_slice(&part);
        // Ctrl-C must interrupt a long body.
        py.check_signals()?;
        match next_part()? {
            Some(next) => part = next,
            None => return Ok(collected.freeze()),
        }
    }
}

/// A streamed call and its request body. Used by the thread that made the call.
pub(crate) struct StreamReader(Mutex<Option<ReaderState>>);

struct ReaderState {
    exchange: StreamingCall,
    pieces: Option<Py<PyIterator>>,
}

impl StreamReader {
    /// Starts a call and sends its body until the response begins.
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

    /// Returns the next part; `None` at the end or after closing.
    pub(crate) fn next_part(&self, py: Python<'_>) -> PyResult<Option<Bytes>> {
        // Taken out, so that the lock is not held while the interpreter's lock is awaited.
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
    /// Waits for the next event, and writes a piece when there is capacity.
    fn run_step(&mut self, py: Python<'_>) -> PyResult<StreamEvent> {
        let Self { exchange, pieces } = self;
        // With a request body the endpoint waits for capacity, too.
        let has_request_body = pieces.is_some();
        let event = with_endpoint(py, |endpoint| {
            endpoint.next_event(exchange, has_request_body)
        })?;
        if let (StreamEvent::Writable, Some(iterator)) = (&event, pieces.as_ref()) {
            match iterator.bind(py).clone().next().transpose()? {
                Some(piece) => {
                    let piece = payload::read_payload(&piece)?;
                    // If the callee wants no more, the next event has the reason.
                    run_detached(py, |endpoint| endpoint.write_chunk(exchange, piece).is_ok());
                }
                None => {
                    run_detached(py, |endpoint| endpoint.finish_body(exchange));
                    *pieces = None;
                }
            }
        }
        Ok(event)
    }

    /// Cancels the call unless it has ended, and closes the generator.
    fn close_call(self, py: Python<'_>) {
        run_detached(py, |endpoint| endpoint.close_call(self.exchange));
        self.pieces
            .iter()
            .for_each(|pieces| close_generator(pieces.bind(py).as_any()));
    }
}

/// Closes a generator that is not read any more.
pub(crate) fn close_generator(pieces: &Bound<'_, PyAny>) {
    // Only generators have it: their `finally` blocks run now, not at garbage collection.
    if pieces.hasattr("close").unwrap_or(false)
        && let Err(raised) = pieces.call_method0("close")
    {
        raised.print(pieces.py());
    }
}
