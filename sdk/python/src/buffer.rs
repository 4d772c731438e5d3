//! A payload that Python writes where it goes out.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nearpath::{BodyDraft, CallBody};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::{PyErr, ffi};

/// So many zeros to write in: shared memory where there is a slot. `memoryview`, `numpy.frombuffer` and `readinto` write there; a
/// call or an answer takes it, once, and raises BufferError while one of these still looks.
#[pyclass(frozen, module = "nearpath")]
pub(crate) struct Buffer(Mutex<BufferState>);

struct BufferState {
    /// Nothing once it was handed over.
    draft: Option<BodyDraft>,
    /// Who can still write: what Python has asked for and not given back.
    exports: usize,
}

fn buffer_error(why: &str) -> PyErr {
    PyBufferError::new_err(why.to_owned())
}

fn handed_over_error() -> PyErr {
    buffer_error("the buffer was handed over: make another one")
}

fn still_exported_error() -> PyErr {
    buffer_error(
        "somebody can still write in the buffer: release its memoryviews, and drop arrays that lie there",
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

    /// To be sent. Nobody can write there any more.
    pub(crate) fn take_body(&self) -> PyResult<CallBody> {
        let mut state = self.lock_state();
        if state.exports > 0 {
            return Err(still_exported_error());
        }
        state
            .draft
            .take()
            .map(CallBody::from)
            .ok_or_else(handed_over_error)
    }
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> PyResult<usize> {
        self.lock_state()
            .draft
            .as_ref()
            .map(|draft| draft.len())
            .ok_or_else(handed_over_error)
    }

    /// Cuts what was not needed.
    fn truncate(&self, bytes: usize) -> PyResult<()> {
        let mut state = self.lock_state();
        if state.exports > 0 {
            return Err(still_exported_error());
        }
        state
            .draft
            .as_mut()
            .map(|draft| draft.truncate(bytes))
            .ok_or_else(handed_over_error)
    }

    /// Whether it lies in shared memory, and not in memory from where it is copied.
    #[getter]
    fn in_slot(&self) -> PyResult<bool> {
        self.lock_state()
            .draft
            .as_ref()
            .map(BodyDraft::is_in_slot)
            .ok_or_else(handed_over_error)
    }

    fn __repr__(&self) -> String {
        match &self.lock_state().draft {
            Some(draft) => format!("<nearpath.Buffer {} bytes>", draft.len()),
            None => "<nearpath.Buffer, handed over>".to_owned(),
        }
    }

    /// # Safety
    /// Python's: `view` can be written, and is given back through `PyBuffer_Release`.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(buffer_error("no place for the buffer"));
        }
        let mut state = slf.get().lock_state();
        let draft = state.draft.as_mut().ok_or_else(handed_over_error)?;
        let (place, length) = (draft.as_mut_ptr(), draft.len() as isize);
        // SAFETY: `view` can be written; it takes a reference to `slf`, which holds the draft. What it shows stays where it is and
        // is neither cut nor handed over before `__releasebuffer__`, for `exports` counts it. Python's threads write there under
        // Python's rules; Rust does not look meanwhile.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), place.cast(), length, 0, flags) };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        state.exports += 1;
        Ok(())
    }

    /// # Safety
    /// Python's: once for each buffer that was given.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.lock_state().exports -= 1;
    }
}
