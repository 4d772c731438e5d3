//! How a call is made, as Python says it.

use std::time::Duration;

use nearpath::CallOptions;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMapping, PyString};

use crate::error::raise;

/// Reads keyword arguments.
pub(crate) fn read(py: Python<'_>, words: Option<&Bound<'_, PyDict>>) -> PyResult<CallOptions> {
    let mut ask = CallOptions::default();
    let Some(words) = words else { return Ok(ask) };
    for (name, value) in words {
        let name: String = name.extract()?;
        ask = match &*name {
            _ if value.is_none() => ask,
            "method" => ask.method(value.extract::<String>()?),
            "path" => ask.path(value.extract::<String>()?),
            "headers" => headers(py, ask, value.cast::<PyMapping>()?)?,
            "deadline" => ask.deadline(duration(value.extract()?)?),
            "silence" => ask.idle_timeout(duration(value.extract()?)?),
            "callback" => ask.callback(value.extract()?).map_err(|error| raise(py, &error))?,
            "idempotent" => {
                if value.is_truthy()? {
                    ask.idempotent()
                } else {
                    ask
                }
            }
            "near_only" => {
                if value.is_truthy()? {
                    ask.shm_only()
                } else {
                    ask
                }
            }
            _ => return Err(PyValueError::new_err(format!("a call has no {name:?}"))),
        };
    }
    Ok(ask)
}

fn headers(py: Python<'_>, mut ask: CallOptions, headers: &Bound<'_, PyMapping>) -> PyResult<CallOptions> {
    for item in headers.items()? {
        let (name, value): (String, Bound<'_, PyAny>) = item.extract()?;
        ask = field(&value, |value| ask.header(&name, value))?.map_err(|error| raise(py, &error))?;
    }
    Ok(ask)
}

/// Text or bytes.
pub(crate) fn field<T>(value: &Bound<'_, PyAny>, take: impl FnOnce(&[u8]) -> T) -> PyResult<T> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(take(bytes.as_bytes()));
    }
    Ok(take(value.cast::<PyString>()?.to_cow()?.as_bytes()))
}

fn duration(seconds: f64) -> PyResult<Duration> {
    let duration = Duration::try_from_secs_f64(seconds);
    duration.map_err(|_| PyValueError::new_err("a deadline is a number of seconds from now, not below 0"))
}
