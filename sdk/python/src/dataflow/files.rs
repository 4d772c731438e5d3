//! Checkpoints for Python.

use std::collections::BTreeMap;

use nearpath_dataflow::checkpoint::{CheckpointFolder, CheckpointManifest};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::{folder_path, value_error};

/// A folder of checkpoints.
#[pyclass(frozen, module = "nearpath.dataflow")]
pub(crate) struct Checkpoints(CheckpointFolder);

#[pymethods]
impl Checkpoints {
    #[new]
    fn new(folder: &str) -> PyResult<Self> {
        Ok(Self(CheckpointFolder::open(folder_path(folder))?))
    }

    /// Saves a state durably.
    fn save(
        &self,
        py: Python<'_>,
        number: u64,
        worker: &str,
        mark: &str,
        state: &[u8],
    ) -> PyResult<()> {
        Ok(py.detach(|| self.0.save_state(number, worker, mark, state))?)
    }

    /// Loads the state of a worker.
    fn load<'py>(
        &self,
        py: Python<'py>,
        number: u64,
        worker: &str,
    ) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(
            py,
            &py.detach(|| self.0.load_state(number, worker))?,
        ))
    }

    /// Completes a checkpoint: `states` maps workers to the marks of their states.
    fn complete(
        &self,
        py: Python<'_>,
        number: u64,
        states: BTreeMap<String, String>,
        finished: Vec<String>,
    ) -> PyResult<()> {
        let manifest = CheckpointManifest {
            number,
            states,
            finished,
        };
        Ok(py.detach(|| self.0.complete_checkpoint(&manifest))?)
    }

    /// Removes all checkpoints of the job.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.0.remove_all())?)
    }

    /// Returns the manifest of the last complete checkpoint, as JSON.
    fn latest(&self) -> PyResult<Option<String>> {
        self.0
            .latest_manifest()?
            .map(|manifest| serde_json::to_string(&manifest).map_err(value_error))
            .transpose()
    }
}
