//! What Python gives as a payload.
#![allow(unsafe_code)]

use bytes::Bytes;
use nearpath::CallBody;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyString};

use crate::buffer::Buffer;
use crate::view::View;

/// `bytes` that Python keeps as they are, for as long as somebody reads them.
struct PinnedBytes {
    address: *const u8,
    length: usize,
    _owner: Py<PyBytes>,
}

// SAFETY: `bytes` never change and do not move; the owner is let go of by PyO3, which waits for the interpreter's lock.
unsafe impl Send for PinnedBytes {}

impl AsRef<[u8]> for PinnedBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: taken from the owner, which is held; `bytes` never change.
        unsafe { std::slice::from_raw_parts(self.address, self.length) }
    }
}

/// Without a copy from a `Buffer`, which is taken, from `bytes` and from a body that came in; anything else that is like bytes,
/// and text, is copied.
pub(crate) fn read_payload(payload: &Bound<'_, PyAny>) -> PyResult<CallBody> {
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
    let buffer = PyBuffer::<u8>::get(payload).map_err(|_| {
        PyTypeError::new_err("a payload is bytes, text, or anything with a buffer of bytes")
    })?;
    buffer.to_vec(payload.py()).map(CallBody::from)
}

/// The body that a memoryview shows, when it shows the whole of one.
fn body_of_view(payload: &Bound<'_, PyAny>) -> Option<CallBody> {
    payload.cast::<PyMemoryView>().ok()?;
    let owner = payload.getattr("obj").ok()?;
    let view = owner.cast::<View>().ok()?;
    (payload.len().ok()? == view.get().0.len()).then(|| view.get().0.share())
}
