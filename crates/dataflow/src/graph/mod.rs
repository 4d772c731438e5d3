//! Stages and edges: the result of `source >> map >> reduce_by_key >> sink`.
//!
//! A stage is a piece of code that several workers run. [`StageGraph::expand`] makes the workers,
//! named `STAGE.NUMBER`, and the streams between them.

mod diagram;
mod expansion;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::topology::{Distribution, default_linger, is_default_linger};

/// A job as its author describes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageGraph {
    /// Stages, in any order.
    pub stages: Vec<GraphStage>,
    /// Edges, without cycles.
    pub edges: Vec<GraphEdge>,
}

/// Code, and the number of workers that run it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphStage {
    /// Name, unique in the graph.
    pub name: String,
    /// Number of workers at the start, at least 1.
    #[serde(default = "default_workers")]
    pub workers: usize,
    /// Maximum number of workers, when workers that this stage reads may ask for more; default:
    /// `workers`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_workers: Option<usize>,
}

impl GraphStage {
    /// Maximum number of workers.
    pub fn max_workers(&self) -> usize {
        self.max_workers.unwrap_or(self.workers)
    }

    /// True when workers may be added while the job runs.
    pub fn can_scale_out(&self) -> bool {
        self.max_workers() > self.workers
    }
}

/// Connection from a stage to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphEdge {
    /// Stage of the producers.
    pub from: String,
    /// Stage of the consumers.
    pub to: String,
    /// Choice of the consumer for an item.
    pub distribution: Distribution,
    /// Batches without room at the consumer go to disk.
    #[serde(default)]
    pub spill: bool,
    /// Time in seconds that an item waits for others before its batch is sent; `null`: until the
    /// batch is full.
    #[serde(default = "default_linger", skip_serializing_if = "is_default_linger")]
    pub linger: Option<f64>,
}

fn default_workers() -> usize {
    1
}

impl StageGraph {
    /// Reads a graph from JSON.
    ///
    /// # Errors
    /// When the text is not a graph, with line and column.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    fn find_stage(&self, name: &str) -> Option<&GraphStage> {
        self.stages.iter().find(|stage| stage.name == name)
    }
}
