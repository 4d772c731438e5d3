//! The exception `nearpath.Error`.

use nearpath::ErrorKind;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    nearpath,
    Error,
    PyException,
    "A failed call: .kind, .function, .path, .retry_is_safe, .status, .reason, .text"
);

/// Converts an error, with its details as attributes.
pub(crate) fn to_python_error(py: Python<'_>, error: &nearpath::Error) -> PyErr {
    let raised = Error::new_err(error.to_string());
    // If an attribute cannot be set, that exception is more urgent.
    match set_attributes(raised.value(py).as_any(), error) {
        Ok(()) => raised,
        Err(other) => other,
    }
}

fn set_attributes(raised: &Bound<'_, PyAny>, error: &nearpath::Error) -> PyResult<()> {
    raised.setattr("kind", error.kind().code_name())?;
    raised.setattr("function", error.function())?;
    raised.setattr("path", error.path().map(|path| path.name()))?;
    raised.setattr("retry_is_safe", error.retry_is_safe())?;
    let (status, reason, text) = match error.kind() {
        ErrorKind::Platform {
            status,
            reason,
            text,
        } => (Some(*status), reason.clone(), Some(text.clone())),
        _ => (None, None, None),
    };
    raised.setattr("text", text)?;
    raised.setattr("status", status)?;
    raised.setattr("reason", reason)
}
