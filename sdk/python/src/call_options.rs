//! Call options from Python's keyword arguments.

use std::time::Duration;

use nearpath::CallOptions;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMapping, PyString};

use crate::error::to_python_error;

/// Names of the call options, for error messages.
const OPTION_NAMES: &str =
    "method, path, headers, deadline, idle_timeout, callback, idempotent, shm_only";

/// Reads keyword arguments.
pub(crate) fn read_options(
    py: Python<'_>,
    keywords: Option<&Bound<'_, PyDict>>,
) -> PyResult<CallOptions> {
    let mut options = CallOptions::default();
    let Some(keywords) = keywords else {
        return Ok(options);
    };
    for (name, value) in keywords {
        let name: String = name.extract()?;
        options = match &*name {
            // None means the default, as everywhere in the SDK.
            _ if value.is_none() => options,
            "method" => options.method(value.extract::<String>()?),
            "path" => options.path(value.extract::<String>()?),
            "headers" => add_headers(py, options, value.cast::<PyMapping>()?)?,
            "deadline" => options.deadline(parse_duration(value.extract()?)?),
            "idle_timeout" => options.idle_timeout(parse_duration(value.extract()?)?),
            "callback" => options
                .callback(value.extract()?)
                .map_err(|error| to_python_error(py, &error))?,
            "idempotent" => {
                if value.is_truthy()? {
                    options.idempotent()
                } else {
                    options
                }
            }
            "shm_only" => {
                if value.is_truthy()? {
                    options.shm_only()
                } else {
                    options
                }
            }
            // A misspelled option must not be ignored.
            _ => {
                return Err(PyValueError::new_err(format!(
                    "unknown call option {name:?}: expected one of {OPTION_NAMES}"
                )));
            }
        };
    }
    Ok(options)
}

fn add_headers(
    py: Python<'_>,
    mut options: CallOptions,
    headers: &Bound<'_, PyMapping>,
) -> PyResult<CallOptions> {
    for item in headers.items()? {
        let (name, value): (String, Bound<'_, PyAny>) = item.extract()?;
        options = with_field_value(&value, |value| options.header(&name, value))?
            .map_err(|error| to_python_error(py, &error))?;
    }
    Ok(options)
}

/// Passes a header value, text or bytes, to `take`.
pub(crate) fn with_field_value<T>(
    value: &Bound<'_, PyAny>,
    take: impl FnOnce(&[u8]) -> T,
) -> PyResult<T> {
    // Bytes first: header values need not be valid UTF-8.
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(take(bytes.as_bytes()));
    }
    Ok(take(value.cast::<PyString>()?.to_cow()?.as_bytes()))
}

fn parse_duration(seconds: f64) -> PyResult<Duration> {
    let duration = Duration::try_from_secs_f64(seconds);
    duration.map_err(|_| {
        PyValueError::new_err(format!(
            "invalid duration {seconds}: expected seconds, 0 or more"
        ))
    })
}
