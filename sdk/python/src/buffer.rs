//! A payload that Python writes in place.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nearpath::{BodyDraft, CallBody};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::{PyErr, ffi};

/// A zeroed buffer, in shared memory if a slot is free. `memoryview`, `numpy.frombuffer` and
/// `readinto` write to it. A call or response consumes it once, and raises BufferError while one of
/// these still refers to it.
#[pyclass(frozen, module = "nearpath")]
pub(crate) struct Buffer(Mutex<BufferState>);

struct BufferState {
    /// `None` once it was consumed.
    draft: Option<BodyDraft>,
    /// Number of exports that Python has not released and can still write through.
    exports: usize,
}

fn buffer_error(reason: &str) -> PyErr {
    PyBufferError::new_err(reason.to_owned())
}

fn consumed_error() -> PyErr {
    buffer_error("the buffer was consumed by an earlier call: create another one")
}

fn still_exported_error() -> PyErr {
    buffer_error(
        "the buffer is still exported: release its memoryviews and drop arrays that use it",
    )
}

impl Buffer {
    pub(crate) fn new(draft: BodyDraft) -> Self {
        Self(Mutex::new(BufferState {
            draft: Some(draft),
            exports: 0,
        }))
    }

    fn lock_state(&self) -> MutexGuard<'_, BufferState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Consumes the buffer to send it. Python cannot write to it any more.
    pub(crate) fn take_body(&self) -> PyResult<CallBody> {
        let mut state = self.lock_state();
        // A memoryview could still write while the payload is sent.
        if state.exports > 0 {
            return Err(still_exported_error());
        }
        state
            .draft
            .take()
            .map(CallBody::from)
            .ok_or_else(consumed_error)
    }
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> PyResult<usize> {
        self.lock_state()
            .draft
            .as_ref()
            .map(|draft| draft.len())
            .ok_or_else(consumed_error)
    }

    /// Cuts the unused end.
    fn truncate(&self, bytes: usize) -> PyResult<()> {
        let mut state = self.lock_state();
        if state.exports > 0 {
            return Err(still_exported_error());
        }
        state
            .draft
            .as_mut()
            .map(|draft| draft.truncate(bytes))
            .ok_or_else(consumed_error)
    }

    /// Returns true if the buffer is in shared memory, so that sending does not copy it.
    #[getter]
    fn in_slot(&self) -> PyResult<bool> {
        self.lock_state()
            .draft
            .as_ref()
            .map(BodyDraft::is_in_slot)
            .ok_or_else(consumed_error)
    }

    fn __repr__(&self) -> String {
        match &self.lock_state().draft {
            Some(draft) => format!("<nearpath.Buffer {} bytes>", draft.len()),
            None => "<nearpath.Buffer, consumed>".to_owned(),
        }
    }

    /// # Safety
    /// Python guarantees that `view` can be written and is released through `PyBuffer_Release`.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(buffer_error(
                "missing buffer view: expected a pointer to one",
            ));
        }
        let mut state = slf.get().lock_state();
        let draft = state.draft.as_mut().ok_or_else(consumed_error)?;
        let (address, length) = (draft.as_mut_ptr(), draft.len() as isize);
        // SAFETY: `view` can be written; it takes a reference to `slf`, which holds the draft.
        // `exports` counts it, so the draft is neither moved, cut nor consumed before
        // `__releasebuffer__`. Python's threads write under Python's rules; Rust does not read
        // meanwhile.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address.cast(), length, 0, flags) };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        // Counted last: a failed export is never released.
        state.exports += 1;
        Ok(())
    }

    /// # Safety
    /// Python calls it once for each buffer that it got.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.lock_state().exports -= 1;
    }
}
