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

    fn check_edge(&self, edge: &Edge, flaws: &mut Vec<Flaw>) {
        let (from, to) = (edge.from.clone(), edge.to.clone());
        let (Some(left), Some(right)) = (self.stage(&from), self.stage(&to)) else {
            let missing = if self.stage(&from).is_none() { (to, from) } else { (from, to) };
            return flaws.push(Flaw::Dangling { worker: missing.0, other: missing.1 });
        };
        let (left, right) = (left.workers, right.workers);
        match edge.how {
            How::OneToOne if left != right => flaws.push(Flaw::Unequal { from, to, left, right }),
            How::Gather if right > 1 => flaws.push(Flaw::Gather { to, workers: right }),
            _ => {}
        }
    }

    /// The workers, checked. A stage that no edge leads to gets an input of type `source`, one that none leaves an output of
    /// type `sink`.
    ///
    /// # Errors
    /// All flaws of the graph; then those that only the workers show: fan-in.
    pub fn expand(&self, limits: Limits) -> Result<Topology, Flaws> {
        self.check()?;
        let workers = self.stages.iter().flat_map(|stage| (0..stage.workers).map(|at| self.worker(stage, at)));
        let topology = Topology { workers: workers.collect() };
        topology.check(limits)?;
        Ok(topology)
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
        Worker { name: called(&stage.name, at), stage: Some(stage.name.clone()), inputs, outputs }
    }

    fn inputs(&self, edge: &Edge, at: usize) -> Vec<Port> {
        let all = 0..self.stage(&edge.from).map_or(0, |stage| stage.workers);
        let from = if edge.how == How::OneToOne { at..at + 1 } else { all };
        from.map(|number| Port::Tcp(Stream::with(&called(&edge.from, number)))).collect()
    }

    fn outputs(&self, edge: &Edge, at: usize) -> Vec<Port> {
        let all = 0..self.stage(&edge.to).map_or(0, |stage| stage.workers);
        let to = if edge.how == How::OneToOne { at..at + 1 } else { all };
        let stream = |number| Stream {
            worker: called(&edge.to, number),
            how: edge.how,
            group: Some(edge.to.clone()),
            spill: edge.spill,
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
