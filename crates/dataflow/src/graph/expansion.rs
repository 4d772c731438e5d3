//! Expansion of stages to workers.

use std::collections::HashMap;

use serde_json::Map;

use super::{GraphEdge, GraphStage, StageGraph};
use crate::topology::{
    CustomPort, Distribution, JobTopology, StreamSpec, TopologyError, TopologyErrors,
    TopologyLimits, WorkerPort, WorkerSpec, check_names, find_cycle, is_valid_linger,
};

impl StageGraph {
    /// Checks that the graph can be expanded.
    ///
    /// # Errors
    /// All errors, in terms of stages.
    pub fn check(&self) -> Result<(), TopologyErrors> {
        let mut errors = Vec::new();
        if self.stages.is_empty() {
            errors.push(TopologyError::NoWorkersAtAll);
        }
        check_names(self.stages.iter().map(|stage| &*stage.name), &mut errors);
        let idle = self.stages.iter().filter(|stage| stage.workers == 0);
        errors.extend(idle.map(|stage| TopologyError::NoWorkers(stage.name.clone())));
        self.check_scale_out(&mut errors);
        for (at, edge) in self.edges.iter().enumerate() {
            self.check_edge(edge, &mut errors);
            if self.edges[..at]
                .iter()
                .any(|other| (&other.from, &other.to) == (&edge.from, &edge.to))
            {
                errors.push(TopologyError::DuplicateEdge {
                    from: edge.from.clone(),
                    to: edge.to.clone(),
                });
            }
        }
        let mut edges: HashMap<&str, Vec<&str>> = HashMap::new();
        for edge in &self.edges {
            edges.entry(&edge.from).or_default().push(&edge.to);
        }
        errors.extend(find_cycle(&edges).map(TopologyError::Cycle));
        TopologyErrors::into_result(errors)
    }

    fn check_scale_out(&self, errors: &mut Vec<TopologyError>) {
        for stage in &self.stages {
            let (name, workers, max_workers) =
                (stage.name.clone(), stage.workers, stage.max_workers());
            if max_workers < workers {
                errors.push(TopologyError::MaxBelowWorkers {
                    stage: name,
                    workers,
                    max_workers,
                });
            } else if stage.can_scale_out() && !self.edges.iter().any(|edge| edge.to == name) {
                errors.push(TopologyError::UnreachableSpare(name));
            }
        }
    }

    fn check_edge(&self, edge: &GraphEdge, errors: &mut Vec<TopologyError>) {
        let (from, to) = (edge.from.clone(), edge.to.clone());
        if !is_valid_linger(edge.linger) {
            errors.push(TopologyError::InvalidLinger {
                from: from.clone(),
                to: to.clone(),
            });
        }
        let (Some(left), Some(right)) = (self.find_stage(&from), self.find_stage(&to)) else {
            let missing = if self.find_stage(&from).is_none() {
                (to, from)
            } else {
                (from, to)
            };
            return errors.push(TopologyError::UnknownWorker {
                worker: missing.0,
                other: missing.1,
            });
        };
        let (from_scales, to_scales, left, right) = (
            left.can_scale_out(),
            right.can_scale_out(),
            left.workers,
            right.workers,
        );
        match edge.distribution {
            // Only `spread` may add consumers at run time: the others assign items by the number of
            // workers.
            Distribution::Spread => {}
            distribution if to_scales => errors.push(TopologyError::ScalableTarget {
                from,
                to,
                distribution,
            }),
            Distribution::OneToOne if from_scales => {
                errors.push(TopologyError::ScalableSource { from, to })
            }
            Distribution::OneToOne if left != right => errors.push(TopologyError::UnequalWorkers {
                from,
                to,
                left,
                right,
            }),
            Distribution::Gather if right > 1 => {
                errors.push(TopologyError::GatherToMany { to, workers: right })
            }
            _ => {}
        }
    }

    /// Makes the workers, checked. A stage without incoming edges gets an input of type `source`, a
    /// stage without outgoing edges an output of type `sink`.
    ///
    /// # Errors
    /// All errors of the graph; then exceeded limits, before any worker is made.
    pub fn expand(&self, limits: TopologyLimits) -> Result<JobTopology, TopologyErrors> {
        self.check()?;
        // Counted on stages first: a graph of two lines can ask for more workers than memory holds.
        self.check_limits(limits)?;
        let workers = self
            .stages
            .iter()
            .flat_map(|stage| (0..stage.max_workers()).map(|at| self.build_worker(stage, at)));
        let mut topology = JobTopology {
            workers: workers.collect(),
        };
        topology.mark_spare_streams();
        // The expansion follows the rules of a handwritten topology; a mistake here shows as an
        // error instead of a broken job.
        topology.check_with(limits)?;
        Ok(topology)
    }

    fn check_limits(&self, limits: TopologyLimits) -> Result<(), TopologyErrors> {
        let has = self.stages.iter().fold(0, |sum: usize, stage| {
            sum.saturating_add(stage.max_workers())
        });
        if has > limits.workers {
            return Err(TopologyErrors(vec![TopologyError::TooManyWorkers {
                has,
                limit: limits.workers,
            }]));
        }
        let mut errors = Vec::new();
        for GraphStage { name, .. } in &self.stages {
            let first_worker = || worker_name(name, 0);
            let reads = self.count_streams(|edge| (edge.to == *name).then_some(&edge.from));
            let writes = self.count_streams(|edge| (edge.from == *name).then_some(&edge.to));
            if reads > limits.fan_in {
                errors.push(TopologyError::FanIn {
                    worker: first_worker(),
                    has: reads,
                    limit: limits.fan_in,
                });
            }
            if writes > limits.fan_out {
                errors.push(TopologyError::FanOut {
                    worker: first_worker(),
                    has: writes,
                    limit: limits.fan_out,
                });
            }
        }
        TopologyErrors::into_result(errors)
    }

    /// Number of streams per worker, over the edges for which `other` names the stage at the far
    /// end.
    fn count_streams<'a>(&'a self, other: impl Fn(&'a GraphEdge) -> Option<&'a String>) -> usize {
        let streams_of_edge = |edge: &'a GraphEdge| match (edge.distribution, other(edge)) {
            (_, None) => 0,
            (Distribution::OneToOne, _) => 1,
            (_, Some(other)) => self.find_stage(other).map_or(0, GraphStage::max_workers),
        };
        self.edges.iter().map(streams_of_edge).sum()
    }

    fn build_worker(&self, stage: &GraphStage, at: usize) -> WorkerSpec {
        let into = self.edges.iter().filter(|edge| edge.to == stage.name);
        let mut inputs: Vec<WorkerPort> =
            into.flat_map(|edge| self.worker_inputs(edge, at)).collect();
        let out = self.edges.iter().filter(|edge| edge.from == stage.name);
        let mut outputs: Vec<WorkerPort> =
            out.flat_map(|edge| self.worker_outputs(edge, at)).collect();
        // Every worker needs an input and an output; these two types call the stage's own code.
        if inputs.is_empty() {
            inputs.push(custom_port("source"));
        }
        if outputs.is_empty() {
            outputs.push(custom_port("sink"));
        }
        let (name, spare) = (worker_name(&stage.name, at), at >= stage.workers);
        WorkerSpec {
            name,
            stage: Some(stage.name.clone()),
            spare,
            inputs,
            outputs,
        }
    }

    fn worker_inputs(&self, edge: &GraphEdge, at: usize) -> Vec<WorkerPort> {
        // Up to the maximum: streams of spare workers are part of the topology from the start, only
        // not open.
        let all = 0..self
            .find_stage(&edge.from)
            .map_or(0, GraphStage::max_workers);
        let from = if edge.distribution == Distribution::OneToOne {
            at..at + 1
        } else {
            all
        };
        from.map(|number| {
            WorkerPort::Stream(StreamSpec::to_worker(&worker_name(&edge.from, number)))
        })
        .collect()
    }

    fn worker_outputs(&self, edge: &GraphEdge, at: usize) -> Vec<WorkerPort> {
        let all = 0..self.find_stage(&edge.to).map_or(0, GraphStage::max_workers);
        let to = if edge.distribution == Distribution::OneToOne {
            at..at + 1
        } else {
            all
        };
        let stream = |number| StreamSpec {
            worker: worker_name(&edge.to, number),
            distribution: edge.distribution,
            group: Some(edge.to.clone()),
            spill: edge.spill,
            linger: edge.linger,
            pending: false,
        };
        to.map(|number| WorkerPort::Stream(stream(number)))
            .collect()
    }
}

fn worker_name(stage: &str, at: usize) -> String {
    format!("{stage}.{at}")
}

fn custom_port(kind: &str) -> WorkerPort {
    WorkerPort::Custom(CustomPort {
        kind: kind.to_owned(),
        fields: Map::new(),
    })
}
