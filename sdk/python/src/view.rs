//! Bytes that Python looks at where they lie.
#![allow(unsafe_code)]

use std::ffi::c_int;

use nearpath::CallBody;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use pyo3::{PyErr, ffi};

/// Owner of a body. Python sees a read-only memoryview of it; the slot is free when the last of these is gone.
#[pyclass(frozen, module = "nearpath")]
pub(crate) struct View(pub(crate) CallBody);

#[pymethods]
impl View {
    /// # Safety
    /// Python's: `view` can be written, and is given back through `PyBuffer_Release`.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() || flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("the body of a message is read-only"));
        }
        let (place, length) = (slf.get().0.as_ptr(), slf.get().0.len());
        // SAFETY: `view` can be written; it takes a reference to `slf`, which is frozen and holds the bytes until it is dropped.
        // Read-only, so the cast of the pointer lets nobody write.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                place.cast_mut().cast(),
                length as isize,
                1,
                flags,
            )
        };
        if filled == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }
}

/// A memoryview of a body.
pub(crate) fn memoryview<'py>(
    py: Python<'py>,
    body: CallBody,
) -> PyResult<Bound<'py, PyMemoryView>> {
    PyMemoryView::from(Bound::new(py, View(body))?.as_any())
}
