//! Workers and the streams between them: the form in which a job starts.
//!
//! This is the published form (Moyer, *Punching Holes in the Cloud*, Virginia Tech 2021). Each
//! worker has a `name`, `inputs` and `outputs`. Each input and output has a `type`: `tcp` for
//! another worker, or a type of the user. The other fields are nearpath's.

mod validation;

use std::collections::HashSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use validation::{TopologyError, TopologyErrors, TopologyLimits};
pub(crate) use validation::{check_names, find_cycle};

/// All workers of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobTopology {
    /// Workers, in any order.
    pub workers: Vec<WorkerSpec>,
}

/// A worker: a process, or a function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerSpec {
    /// Name, unique in the job: ASCII alphanumeric, `-`, `_` and `.`.
    pub name: String,
    /// Code that the worker runs; default: its own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Started only while the job runs, when a worker that this one reads asks for it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spare: bool,
    /// Sources of its items.
    pub inputs: Vec<WorkerPort>,
    /// Destinations of its items.
    pub outputs: Vec<WorkerPort>,
}

/// An input or output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum WorkerPort {
    /// Stream from or to another worker, which names this one in turn. The network path is not part
    /// of the topology.
    #[serde(rename = "tcp")]
    Stream(StreamSpec),
    /// Defined by the user: the worker's `input` or `output` is called with these fields.
    #[serde(untagged)]
    // Untagged and last: serde tries it when `type` is not `tcp`, so every other word is the
    // user's.
    Custom(CustomPort),
}

/// The other end of a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSpec {
    /// Name of the other worker; `name` in the published form.
    #[serde(alias = "name")]
    pub worker: String,
    /// For an output: choice of the consumer within its group.
    #[serde(default, skip_serializing_if = "is_default")]
    pub distribution: Distribution,
    /// For an output: outputs of one group share the items, and every group gets all of them.
    /// Default: the other worker's stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// For an output: batches without room go to disk, so that the producer does not wait.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spill: bool,
    /// For an output: time in seconds that an item waits for others before its batch is sent;
    /// `null`: until the batch is full.
    #[serde(default = "default_linger", skip_serializing_if = "is_default_linger")]
    pub linger: Option<f64>,
    /// The other worker is spare: the stream opens when it starts. Computed when the topology is
    /// read; a written value is ignored.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pending: bool,
}

/// An input or output that is not a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CustomPort {
    /// Type, as named by the user.
    #[serde(rename = "type")]
    pub kind: String,
    /// Further fields of the user.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// Choice of the worker of the next stage for an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// The worker with the same number.
    OneToOne,
    /// All workers.
    #[default]
    Broadcast,
    /// The worker to which the item's key belongs: the first element of a pair.
    ByKey,
    /// The only worker.
    Gather,
    /// Each worker in turn, one batch at a time.
    Spread,
}

impl Distribution {
    /// Name in JSON and in error texts.
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

/// Linger of an edge, in seconds: hardly visible to a person, and long enough for full batches of
/// a busy producer.
pub const DEFAULT_LINGER: f64 = 0.05;

pub(crate) fn default_linger() -> Option<f64> {
    Some(DEFAULT_LINGER)
}

pub(crate) fn is_default_linger(linger: &Option<f64>) -> bool {
    *linger == default_linger()
}

/// True for a linger that a timer can wait for.
pub(crate) fn is_valid_linger(linger: Option<f64>) -> bool {
    linger.is_none_or(|seconds| Duration::try_from_secs_f64(seconds).is_ok())
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl JobTopology {
    /// Reads a topology from JSON.
    ///
    /// # Errors
    /// When the text is not a topology, with line and column.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        let mut topology = Self::parse(text)?;
        // Not taken from the text: a stale `later` would make two workers disagree about a stream.
        topology.mark_spare_streams();
        Ok(topology)
    }

    /// Parses an object with `workers`, or the workers alone, as the published form has them.
    fn parse(text: &str) -> Result<Self, serde_json::Error> {
        // Chosen before parsing: the error of an untagged enum would name no line.
        if text.trim_start().starts_with('[') {
            let workers = serde_json::from_str(text)?;
            return Ok(Self { workers });
        }
        serde_json::from_str(text)
    }

    /// Marks the streams whose other end is spare.
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
                stream.pending = spares.contains(&stream.worker);
            }
        }
    }

    /// Finds a worker by name.
    pub fn find_worker(&self, name: &str) -> Option<&WorkerSpec> {
        self.workers.iter().find(|worker| worker.name == name)
    }
}

impl WorkerSpec {
    /// Code that the worker runs.
    pub fn stage_name(&self) -> &str {
        self.stage.as_deref().unwrap_or(&self.name)
    }

    /// Streams that the worker reads.
    pub fn source_streams(&self) -> impl Iterator<Item = &StreamSpec> {
        self.inputs.iter().filter_map(WorkerPort::as_stream)
    }

    /// Streams that the worker writes.
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
    /// Stream from or to that worker, with defaults.
    pub fn to_worker(worker: &str) -> Self {
        Self {
            worker: worker.to_owned(),
            distribution: Distribution::default(),
            group: None,
            spill: false,
            linger: default_linger(),
            pending: false,
        }
    }
}
