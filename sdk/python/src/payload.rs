//! Payloads from Python.
#![allow(unsafe_code)]

use bytes::Bytes;
use nearpath::CallBody;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyString};

use crate::buffer::Buffer;
use crate::view::View;

/// Python `bytes` that stay alive while they are read.
struct PinnedBytes {
    address: *const u8,
    length: usize,
    _owner: Py<PyBytes>,
}

// SAFETY: `bytes` never change and do not move. PyO3 drops the owner under the interpreter's lock.
unsafe impl Send for PinnedBytes {}

impl AsRef<[u8]> for PinnedBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the pointer comes from the owner, which is kept alive; `bytes` never change.
        unsafe { std::slice::from_raw_parts(self.address, self.length) }
    }
}

/// Reads a payload. A `Buffer`, which is consumed, `bytes` and a received body are not copied;
/// other buffers and text are.
pub(crate) fn read_payload(payload: &Bound<'_, PyAny>) -> PyResult<CallBody> {
    // First the types that need no copy, from the most specific one on.
    if let Ok(buffer) = payload.cast::<Buffer>() {
        return buffer.get().take_body();
    }
    if let Ok(bytes) = payload.cast::<PyBytes>() {
        let slice = bytes.as_bytes();
        let pinned = PinnedBytes {
            address: slice.as_ptr(),
            length: slice.len(),
            _owner: bytes.clone().unbind(),
        };
        return Ok(Bytes::from_owner(pinned).into());
    }
    if let Some(body) = body_of_view(payload) {
        return Ok(body);
    }
    if let Ok(text) = payload.cast::<PyString>() {
        return Ok(Bytes::copy_from_slice(text.to_cow()?.as_bytes()).into());
    }
    // Copied: the memory of other buffers may change or move.
    let buffer = PyBuffer::<u8>::get(payload).map_err(|_| {
        PyTypeError::new_err(
            "invalid payload: expected bytes, text or an object with a buffer of bytes",
        )
    })?;
    buffer.to_vec(payload.py()).map(CallBody::from)
}

/// Body behind a memoryview that covers all of it.
fn body_of_view(payload: &Bound<'_, PyAny>) -> Option<CallBody> {
    payload.cast::<PyMemoryView>().ok()?;
    let owner = payload.getattr("obj").ok()?;
    let view = owner.cast::<View>().ok()?;
    // A slice of a view does not cover the body, and is copied like any buffer.
    (payload.len().ok()? == view.get().0.len()).then(|| view.get().0.share())
}
