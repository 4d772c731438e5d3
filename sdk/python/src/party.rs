//! Calls: each thread of Python is a party of its own, from its first call on.

use std::cell::RefCell;

use nearpath::blocking::Party;
use nearpath::{Draft, Error};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::buffer::Buffer;
use crate::error::raise;
use crate::messages::Response;
use crate::{ask, payload};

thread_local! {
    /// While a handler runs, the party that serves.
    static PARTY: RefCell<Party> = RefCell::new(Party::default());
}

/// Exchanges this thread's party for another.
pub(crate) fn swap(party: &mut Party) {
    PARTY.with_borrow_mut(|own| std::mem::swap(own, party));
}

/// Works with this thread's party, other threads of Python running meanwhile.
fn with<T: Send>(py: Python<'_>, work: impl FnOnce(&mut Party) -> Result<T, Error> + Send) -> PyResult<T> {
    py.detach(|| PARTY.with_borrow_mut(work)).map_err(|error| raise(py, &error))
}

/// So many zeros to write a payload in, where it goes out.
#[pyfunction]
#[pyo3(signature = (bytes, /))]
pub(crate) fn buffer(py: Python<'_>, bytes: usize) -> PyResult<Buffer> {
    let draft = with(py, |party| Ok(party.draft_in_slot(bytes)))?;
    draft.or_else(|| private(bytes)).map(Buffer::new).ok_or_else(|| PyMemoryError::new_err("no memory for the buffer"))
}

fn private(bytes: usize) -> Option<Draft> {
    let mut own = Vec::new();
    own.try_reserve_exact(bytes).ok()?;
    own.resize(bytes, 0);
    Some(Draft::written(own))
}

/// Calls a function and waits for its answer, whatever status that has.
#[pyfunction]
#[pyo3(signature = (name, payload=None, /, **how))]
pub(crate) fn call(
    py: Python<'_>,
    name: &str,
    payload: Option<&Bound<'_, PyAny>>,
    how: Option<&Bound<'_, PyDict>>,
) -> PyResult<Response> {
    let ask = ask::read(py, how)?;
    let payload = payload.map(payload::read).transpose()?.unwrap_or_default();
    with(py, |party| party.call(name, payload, &ask)).map(Response)
}

/// Calls several functions at once: each is (name, payload). The answers come in the same order.
#[pyfunction]
#[pyo3(signature = (*calls, return_errors=false, **how))]
pub(crate) fn gather<'py>(
    py: Python<'py>,
    calls: &Bound<'py, PyTuple>,
    return_errors: bool,
    how: Option<&Bound<'py, PyDict>>,
) -> PyResult<Vec<Py<PyAny>>> {
    let ask = ask::read(py, how)?;
    let mut wanted = Vec::with_capacity(calls.len());
    for each in calls {
        let (name, payload): (String, Bound<'_, PyAny>) = each.extract()?;
        wanted.push((name, payload::read(&payload)?));
    }
    let outcomes = with(py, |party| {
        let begun: Vec<_> = wanted.into_iter().map(|(name, payload)| party.begin(&name, payload, &ask)).collect();
        Ok(begun.into_iter().map(|pending| pending.and_then(|pending| party.wait(pending))).collect::<Vec<_>>())
    })?;
    let told = outcomes.into_iter().map(|outcome| match outcome {
        Ok(response) => Ok(Py::new(py, Response(response))?.into_any()),
        Err(error) if return_errors => Ok(raise(py, &error).into_value(py).into_any()),
        Err(error) => Err(raise(py, &error)),
    });
    told.collect()
}

/// Sends an event: nobody answers.
#[pyfunction]
#[pyo3(signature = (name, payload=None, /, **how))]
pub(crate) fn notify(
    py: Python<'_>,
    name: &str,
    payload: Option<&Bound<'_, PyAny>>,
    how: Option<&Bound<'_, PyDict>>,
) -> PyResult<()> {
    let ask = ask::read(py, how)?;
    let payload = payload.map(payload::read).transpose()?.unwrap_or_default();
    with(py, |party| party.notify(name, payload, &ask))
}
