//! Read-only views of bodies for Python.
#![allow(unsafe_code)]

use std::ffi::c_int;

use nearpath::CallBody;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use pyo3::{PyErr, ffi};

/// Owner of a body that Python sees as a read-only memoryview. The slot is freed with its last
/// reference.
#[pyclass(frozen, module = "nearpath")]
pub(crate) struct View(pub(crate) CallBody);

#[pymethods]
impl View {
    /// # Safety
    /// Python guarantees that `view` can be written and is released through `PyBuffer_Release`.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // Peers may read the same memory, so a body is never writable.
        if view.is_null() || flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err(
                "the body of a message is read-only: copy it with bytes()",
            ));
        }
        let (address, length) = (slf.get().0.as_ptr(), slf.get().0.len());
        // SAFETY: `view` can be written; it takes a reference to `slf`, which is frozen and holds
        // the bytes until it is dropped. Read-only, so no write goes through the cast pointer.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                address.cast_mut().cast(),
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

/// Creates a memoryview of a body.
pub(crate) fn memoryview<'py>(
    py: Python<'py>,
    body: CallBody,
) -> PyResult<Bound<'py, PyMemoryView>> {
    PyMemoryView::from(Bound::new(py, View(body))?.as_any())
}
