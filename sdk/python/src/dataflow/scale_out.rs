//! Scaling out of a running job, for Python.

use std::collections::{BTreeMap, HashSet};

use nearpath_dataflow::scale_out;
use nearpath_dataflow::topology::JobTopology;
use pyo3::prelude::*;

use super::value_error;

/// Decisions about added workers in one attempt.
#[pyclass(module = "nearpath.dataflow")]
pub(crate) struct ScaleOutDecisions(scale_out::ScaleOut);

#[pymethods]
impl ScaleOutDecisions {
    /// Takes the topology as JSON, the workers in the last checkpoint, and its finished workers.
    #[new]
    fn new(
        topology: &str,
        participants: HashSet<String>,
        finished: HashSet<String>,
    ) -> PyResult<Self> {
        let topology = JobTopology::from_json(topology).map_err(value_error)?;
        Ok(Self(scale_out::ScaleOut::new(
            &topology,
            &participants,
            finished,
        )))
    }

    /// Restores workers that the checkpoint granted and that had not started by then.
    fn restore_reservation(&mut self, worker: &str, stage: &str, count: usize) {
        self.0.restore_reservation(worker, stage, count);
    }

    /// Returns the number of additional workers of a stage; `call` counts the worker's requests.
    fn request_workers(&mut self, worker: &str, call: u64, stage: &str, count: usize) -> usize {
        self.0.request_workers(worker, call, stage, count)
    }

    /// Starts granted workers while no checkpoint runs. Returns true if workers must be notified.
    fn between_checkpoints(&mut self) -> bool {
        self.0.between_checkpoints()
    }

    /// Returns true while no checkpoint may start.
    fn blocks_checkpoints(&self) -> bool {
        self.0.blocks_checkpoints()
    }

    /// Records that a worker has opened its stream from or to an added worker.
    fn record_opened(&mut self, worker: &str, spare: &str) {
        self.0.record_opened(worker, spare);
    }

    /// Records that a worker has finished.
    fn record_finished(&mut self, worker: &str) {
        self.0.record_finished(worker);
    }

    /// Returns a worker's inputs to open, outputs to open, and inputs that stay unused.
    fn edge_update(&self, worker: &str) -> (Vec<String>, Vec<String>, Vec<String>) {
        let update = self.0.edge_update(worker);
        (update.inputs, update.outputs, update.unused)
    }

    /// Returns the workers that were added in this attempt, with their requesters.
    fn started_workers(&self) -> BTreeMap<String, String> {
        self.0.started_workers()
    }
}
