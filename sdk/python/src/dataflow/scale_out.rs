//! Scaling out of a running job, for Python.

use std::collections::{BTreeMap, HashSet};

use nearpath_dataflow::scale_out;
use nearpath_dataflow::topology::JobTopology;
use pyo3::prelude::*;

use super::value_error;

/// Decisions about added workers in one attempt.
#[pyclass(module = "nearpath.dataflow")]
pub(crate) struct Growth(scale_out::ScaleOut);

#[pymethods]
impl Growth {
    /// Takes the topology as JSON, the workers in the last checkpoint, and those that had finished
    /// by then.
    #[new]
    fn new(
        topology: &str,
        took_part: HashSet<String>,
        finished: HashSet<String>,
    ) -> PyResult<Self> {
        let topology = JobTopology::from_json(topology).map_err(value_error)?;
        Ok(Self(scale_out::ScaleOut::new(
            &topology, &took_part, finished,
        )))
    }

    /// Restores workers that were promised by the checkpoint and not started by then.
    fn owe(&mut self, worker: &str, stage: &str, count: usize) {
        self.0.restore_reservation(worker, stage, count);
    }

    /// Returns the number of additional workers of a stage; `call` counts the worker's requests.
    fn ask(&mut self, worker: &str, call: u64, stage: &str, count: usize) -> usize {
        self.0.request_workers(worker, call, stage, count)
    }

    /// Opens promised workers, while no checkpoint runs. Returns true if workers must be notified.
    fn between(&mut self) -> bool {
        self.0.between_checkpoints()
    }

    /// Returns true while no checkpoint may start.
    fn holds(&self) -> bool {
        self.0.blocks_checkpoints()
    }

    /// Records that a worker has opened its stream from or to an added worker.
    fn opened(&mut self, worker: &str, spare: &str) {
        self.0.record_opened(worker, spare);
    }

    fn finished(&mut self, worker: &str) {
        self.0.record_finished(worker);
    }

    /// Instructions for a worker: inputs to open, outputs to open, and inputs that never open.
    fn word(&self, worker: &str) -> (Vec<String>, Vec<String>, Vec<String>) {
        let word = self.0.edge_update(worker);
        (word.inputs, word.outputs, word.unused)
    }

    /// Workers that were added in this attempt, with the workers that requested them.
    fn grown(&self) -> BTreeMap<String, String> {
        self.0.started_workers()
    }
}
