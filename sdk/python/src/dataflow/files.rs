//! Checkpoints, for Python.

use std::collections::BTreeMap;

use nearpath_dataflow::checkpoint::{Folder, Manifest};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::{path, wrong};

/// A folder of checkpoints.
#[pyclass(frozen, module = "nearpath.dataflow")]
pub(crate) struct Checkpoints(Folder);

#[pymethods]
impl Checkpoints {
    #[new]
    fn new(folder: &str) -> PyResult<Self> {
        Ok(Self(Folder::open(path(folder))?))
    }

    /// Safe on disk when this returns.
    fn save(&self, py: Python<'_>, number: u64, worker: &str, mark: &str, state: &[u8]) -> PyResult<()> {
        Ok(py.detach(|| self.0.save(number, worker, mark, state))?)
    }

    fn load<'py>(&self, py: Python<'py>, number: u64, worker: &str) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &py.detach(|| self.0.load(number, worker))?))
    }

    fn complete(
        &self,
        py: Python<'_>,
        number: u64,
        states: BTreeMap<String, String>,
        finished: Vec<String>,
    ) -> PyResult<()> {
        let manifest = Manifest { number, states, finished };
        Ok(py.detach(|| self.0.complete(&manifest))?)
    }

    /// Nothing of the job stays.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.0.clear())?)
    }

    /// The manifest of the last complete one, as JSON.
    fn latest(&self) -> PyResult<Option<String>> {
        self.0.latest()?.map(|manifest| serde_json::to_string(&manifest).map_err(wrong)).transpose()
    }
}
