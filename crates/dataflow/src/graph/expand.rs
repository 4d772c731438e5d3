//! From stages to workers.

use std::collections::HashMap;

use serde_json::Map;

use super::{Edge, Graph, Stage};
use crate::topology::{Flaw, Flaws, How, Limits, Own, Port, Stream, Topology, Worker, cycle, names};

impl Graph {
    /// Whether it can be expanded.
    ///
    /// # Errors
    /// All flaws, in the words of stages.
    pub fn check(&self) -> Result<(), Flaws> {
        let mut flaws = Vec::new();
        if self.stages.is_empty() {
            flaws.push(Flaw::Empty);
        }
        names(self.stages.iter().map(|stage| &*stage.name), &mut flaws);
        let idle = self.stages.iter().filter(|stage| stage.workers == 0);
        flaws.extend(idle.map(|stage| Flaw::NoWorkers(stage.name.clone())));
        self.check_growth(&mut flaws);
        for (at, edge) in self.edges.iter().enumerate() {
            self.check_edge(edge, &mut flaws);
            if self.edges[..at].iter().any(|other| (&other.from, &other.to) == (&edge.from, &edge.to)) {
                flaws.push(Flaw::Twice { from: edge.from.clone(), to: edge.to.clone() });
            }
        }
        let mut edges: HashMap<&str, Vec<&str>> = HashMap::new();
        for edge in &self.edges {
            edges.entry(&edge.from).or_default().push(&edge.to);
        }
        flaws.extend(cycle(&edges).map(Flaw::Cycle));
        Flaws::none(flaws)
    }

    fn check_growth(&self, flaws: &mut Vec<Flaw>) {
        for stage in &self.stages {
            let (name, workers, most) = (stage.name.clone(), stage.workers, stage.most());
            if most < workers {
                flaws.push(Flaw::Most { stage: name, workers, most });
            } else if stage.grows() && !self.edges.iter().any(|edge| edge.to == name) {
                flaws.push(Flaw::NobodyAsks(name));
            }
        }
    }

    fn check_edge(&self, edge: &Edge, flaws: &mut Vec<Flaw>) {
        let (from, to) = (edge.from.clone(), edge.to.clone());
        let (Some(left), Some(right)) = (self.stage(&from), self.stage(&to)) else {
            let missing = if self.stage(&from).is_none() { (to, from) } else { (from, to) };
            return flaws.push(Flaw::Dangling { worker: missing.0, other: missing.1 });
        };
        let (grows_left, grows_right, left, right) = (left.grows(), right.grows(), left.workers, right.workers);
        match edge.how {
            How::Spread => {}
            how if grows_right => flaws.push(Flaw::Grows { from, to, how }),
            How::OneToOne if grows_left => flaws.push(Flaw::GrowsFrom { from, to }),
            How::OneToOne if left != right => flaws.push(Flaw::Unequal { from, to, left, right }),
            How::Gather if right > 1 => flaws.push(Flaw::Gather { to, workers: right }),
            _ => {}
        }
    }

    /// The workers, checked. A stage that no edge leads to gets an input of type `source`, one that none leaves an output of
    /// type `sink`.
    ///
    /// # Errors
    /// All flaws of the graph; then what there would be too many of, before it is made.
    pub fn expand(&self, limits: Limits) -> Result<Topology, Flaws> {
        self.check()?;
        self.count(limits)?;
        let workers = self.stages.iter().flat_map(|stage| (0..stage.most()).map(|at| self.worker(stage, at)));
        let mut topology = Topology { workers: workers.collect() };
        topology.mark_later();
        topology.check(limits)?;
        Ok(topology)
    }

    fn count(&self, limits: Limits) -> Result<(), Flaws> {
        let has = self.stages.iter().fold(0, |sum: usize, stage| sum.saturating_add(stage.most()));
        if has > limits.workers {
            return Err(Flaws(vec![Flaw::Many { has, limit: limits.workers }]));
        }
        let mut flaws = Vec::new();
        for Stage { name, .. } in &self.stages {
            let worker = || called(name, 0);
            let reads = self.streams(|edge| (edge.to == *name).then_some(&edge.from));
            let writes = self.streams(|edge| (edge.from == *name).then_some(&edge.to));
            if reads > limits.fan_in {
                flaws.push(Flaw::FanIn { worker: worker(), has: reads, limit: limits.fan_in });
            }
            if writes > limits.fan_out {
                flaws.push(Flaw::FanOut { worker: worker(), has: writes, limit: limits.fan_out });
            }
        }
        Flaws::none(flaws)
    }

    /// Of one worker, with the stages at the other ends of some edges.
    fn streams<'a>(&'a self, other: impl Fn(&'a Edge) -> Option<&'a String>) -> usize {
        let each = |edge: &'a Edge| match (edge.how, other(edge)) {
            (_, None) => 0,
            (How::OneToOne, _) => 1,
            (_, Some(other)) => self.stage(other).map_or(0, Stage::most),
        };
        self.edges.iter().map(each).sum()
    }

    fn worker(&self, stage: &Stage, at: usize) -> Worker {
        let into = self.edges.iter().filter(|edge| edge.to == stage.name);
        let mut inputs: Vec<Port> = into.flat_map(|edge| self.inputs(edge, at)).collect();
        let out = self.edges.iter().filter(|edge| edge.from == stage.name);
        let mut outputs: Vec<Port> = out.flat_map(|edge| self.outputs(edge, at)).collect();
        if inputs.is_empty() {
            inputs.push(own("source"));
        }
        if outputs.is_empty() {
            outputs.push(own("sink"));
        }
        let (name, spare) = (called(&stage.name, at), at >= stage.workers);
        Worker { name, stage: Some(stage.name.clone()), spare, inputs, outputs }
    }

    fn inputs(&self, edge: &Edge, at: usize) -> Vec<Port> {
        let all = 0..self.stage(&edge.from).map_or(0, Stage::most);
        let from = if edge.how == How::OneToOne { at..at + 1 } else { all };
        from.map(|number| Port::Tcp(Stream::with(&called(&edge.from, number)))).collect()
    }

    fn outputs(&self, edge: &Edge, at: usize) -> Vec<Port> {
        let all = 0..self.stage(&edge.to).map_or(0, Stage::most);
        let to = if edge.how == How::OneToOne { at..at + 1 } else { all };
        let stream = |number| Stream {
            worker: called(&edge.to, number),
            how: edge.how,
            group: Some(edge.to.clone()),
            spill: edge.spill,
            later: false,
        };
        to.map(|number| Port::Tcp(stream(number))).collect()
    }
}

fn called(stage: &str, at: usize) -> String {
    format!("{stage}.{at}")
}

fn own(kind: &str) -> Port {
    Port::Own(Own { kind: kind.to_owned(), fields: Map::new() })
}
