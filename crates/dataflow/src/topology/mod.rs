//! Workers and what goes between them: what a job is made of when it starts.
//!
//! This is the published form (Moyer, *Punching Holes in the Cloud*, Virginia Tech 2021): each worker has a `name`, `inputs` and
//! `outputs`, each of these a `type`: `tcp`, another worker, or one of the user's own. Names of further fields are nearpath's.

mod validation;

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use validation::{TopologyError, TopologyErrors, TopologyLimits};
pub(crate) use validation::{check_names, find_cycle};

/// All workers of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobTopology {
    /// In any order.
    pub workers: Vec<WorkerSpec>,
}

/// One worker: a process, or a function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerSpec {
    /// Nobody else's in this job: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Which code it runs; its own name where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Whether it is only started when a worker that it reads asks for it, while the job runs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spare: bool,
    /// Where its items come from.
    pub inputs: Vec<WorkerPort>,
    /// Where they go.
    pub outputs: Vec<WorkerPort>,
}

/// One input or output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum WorkerPort {
    /// A stream from or to another worker, which names this one in turn. The path that carries it is not said here.
    #[serde(rename = "tcp")]
    Stream(StreamSpec),
    /// The user's: the worker's `input` or `output` is called with these fields.
    #[serde(untagged)]
    Custom(CustomPort),
}

/// The other end of a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSpec {
    /// The other worker.
    pub worker: String,
    /// Of an output: which of the worker's outputs of one group an item goes to.
    #[serde(default, skip_serializing_if = "is_default")]
    pub how: Distribution,
    /// Of an output: outputs of one group share the items; every group gets them all. The other worker's stage where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Of an output: whether batches for which there is no room go to disk, so that their producer need not wait.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spill: bool,
    /// The other worker is spare: the stream opens when that one is started. Whatever is written here, nearpath knows better.
    #[serde(default, skip_serializing_if = "is_default")]
    pub later: bool,
}

/// An input or output that is not a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CustomPort {
    /// The user's word for it.
    #[serde(rename = "type")]
    pub kind: String,
    /// The user's fields.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// Which worker of the next stage an item goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// The one with the same number.
    OneToOne,
    /// All of them.
    #[default]
    Broadcast,
    /// The one whose share of the keys has the item's: the first of a pair.
    ByKey,
    /// The only one.
    Gather,
    /// Each in turn, a batch at a time.
    Spread,
}

impl Distribution {
    /// As it is written down.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneToOne => "one-to-one",
            Self::Broadcast => "broadcast",
            Self::ByKey => "by-key",
            Self::Gather => "gather",
            Self::Spread => "spread",
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl JobTopology {
    /// From JSON.
    ///
    /// # Errors
    /// Text that is not a topology, with line and column.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        let mut topology: Self = serde_json::from_str(text)?;
        topology.mark_spare_streams();
        Ok(topology)
    }

    /// Each stream knows whether its other end is spare.
    pub(crate) fn mark_spare_streams(&mut self) {
        let spares = self
            .workers
            .iter()
            .filter(|worker| worker.spare)
            .map(|worker| worker.name.clone());
        let spares: HashSet<String> = spares.collect();
        for port in self
            .workers
            .iter_mut()
            .flat_map(|worker| worker.inputs.iter_mut().chain(&mut worker.outputs))
        {
            if let WorkerPort::Stream(stream) = port {
                stream.later = spares.contains(&stream.worker);
            }
        }
    }

    /// The worker of that name.
    pub fn find_worker(&self, name: &str) -> Option<&WorkerSpec> {
        self.workers.iter().find(|worker| worker.name == name)
    }
}

impl WorkerSpec {
    /// Which code it runs.
    pub fn stage_name(&self) -> &str {
        self.stage.as_deref().unwrap_or(&self.name)
    }

    /// Whom it hears.
    pub fn source_streams(&self) -> impl Iterator<Item = &StreamSpec> {
        self.inputs.iter().filter_map(WorkerPort::as_stream)
    }

    /// Whom it speaks to.
    pub fn target_streams(&self) -> impl Iterator<Item = &StreamSpec> {
        self.outputs.iter().filter_map(WorkerPort::as_stream)
    }
}

impl WorkerPort {
    fn as_stream(&self) -> Option<&StreamSpec> {
        match self {
            Self::Stream(stream) => Some(stream),
            Self::Custom(_) => None,
        }
    }
}

impl StreamSpec {
    /// From or to that worker.
    pub fn to_worker(worker: &str) -> Self {
        Self {
            worker: worker.to_owned(),
            how: Distribution::default(),
            group: None,
            spill: false,
            later: false,
        }
    }
}
