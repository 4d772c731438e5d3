//! Workers that are started while a job runs, for Python.

use std::collections::{BTreeMap, HashSet};

use nearpath_dataflow::scale_out;
use nearpath_dataflow::topology::JobTopology;
use pyo3::prelude::*;

use super::value_error;

/// What a job decides about them in one attempt.
#[pyclass(module = "nearpath.dataflow")]
pub(crate) struct Growth(scale_out::ScaleOut);

#[pymethods]
impl Growth {
    /// The topology as JSON; who has taken part in the last checkpoint, and who had finished by then.
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

    /// A worker had been given so many by the checkpoint that had not been started by then.
    fn owe(&mut self, worker: &str, stage: &str, count: usize) {
        self.0.restore_reservation(worker, stage, count);
    }

    /// How many more of a stage a worker gets; `call` counts its calls.
    fn ask(&mut self, worker: &str, call: u64, stage: &str, count: usize) -> usize {
        self.0.request_workers(worker, call, stage, count)
    }

    /// No checkpoint is under way: what was promised begins to open. Whether there is something new to tell.
    fn between(&mut self) -> bool {
        self.0.between_checkpoints()
    }

    /// Whether no checkpoint may begin now.
    fn holds(&self) -> bool {
        self.0.blocks_checkpoints()
    }

    /// A worker has opened its stream from or to that spare one.
    fn opened(&mut self, worker: &str, spare: &str) {
        self.0.record_opened(worker, spare);
    }

    fn finished(&mut self, worker: &str) {
        self.0.record_finished(worker);
    }

    /// What a worker is to be told: inputs that are to be open, outputs, and inputs that never open.
    fn word(&self, worker: &str) -> (Vec<String>, Vec<String>, Vec<String>) {
        let word = self.0.edge_update(worker);
        (word.inputs, word.outputs, word.unused)
    }

    /// Workers that were asked for in this attempt, with their owners.
    fn grown(&self) -> BTreeMap<String, String> {
        self.0.started_workers()
    }
}
