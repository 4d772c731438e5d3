//! Stages and edges: what `source >> map >> reduce_by_key >> sink` builds.
//!
//! A stage is one piece of code that several workers run. [`StageGraph::expansion`] makes the workers, `STAGE.NUMBER`, and the streams
//! between them.

mod diagram;
mod expansion;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::topology::Distribution;

/// A job as its author thinks of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageGraph {
    /// In any order.
    pub stages: Vec<GraphStage>,
    /// Without cycles.
    pub edges: Vec<GraphEdge>,
}

/// Code, and how many run it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphStage {
    /// Nobody else's in this graph.
    pub name: String,
    /// How many workers; at least 1.
    #[serde(default = "default_workers")]
    pub workers: usize,
    /// How many there may be once workers that it reads have asked for more; as many as there are where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<usize>,
}

impl GraphStage {
    /// All that there may ever be.
    pub fn max_workers(&self) -> usize {
        self.most.unwrap_or(self.workers)
    }

    /// Whether there may be more than at the beginning.
    pub fn can_scale_out(&self) -> bool {
        self.max_workers() > self.workers
    }
}

/// From a stage to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphEdge {
    /// The producers' stage.
    pub from: String,
    /// The consumers'.
    pub to: String,
    /// Which consumer an item goes to.
    pub how: Distribution,
    /// Whether batches for which there is no room go to disk.
    #[serde(default)]
    pub spill: bool,
}

fn default_workers() -> usize {
    1
}

impl StageGraph {
    /// From JSON.
    ///
    /// # Errors
    /// Text that is not a graph, with line and column.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    fn find_stage(&self, name: &str) -> Option<&GraphStage> {
        self.stages.iter().find(|stage| stage.name == name)
    }
}
