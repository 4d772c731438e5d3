//! A job as the simulation has it: all of its state, and one thing after the other.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use super::Rules;
use crate::flow::{Merge, Piece, Start};
use crate::scale_out::{Growth, Word};
use crate::topology::{Topology, Worker};

/// What a worker knows at its barrier.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// A feed's place in what it emits and asks for.
    pub(super) place: u32,
    pub(super) kept: Vec<u32>,
    pub(super) given: usize,
    /// Its inputs have ended: what it makes of them all may be on its way.
    pub(super) ended: bool,
    pub(super) inputs: BTreeMap<String, Option<u64>>,
    pub(super) outputs: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Checkpoint {
    pub(super) number: u64,
    pub(super) states: BTreeMap<String, Known>,
    pub(super) finished: BTreeMap<String, Known>,
}

pub(super) struct Output {
    pub(super) to: String,
    pub(super) sent: u64,
    pub(super) later: bool,
    pub(super) open: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Phase {
    Reading,
    Ended,
    /// Its ends have gone out.
    Waiting,
    Finished,
}

pub(super) struct Node {
    pub(super) known: Known,
    pub(super) merge: Merge<u32>,
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<Output>,
    pub(super) turn: usize,
    pub(super) calls: u64,
    pub(super) phase: Phase,
    /// Words of the coordinator on their way here, and to it from here.
    pub(super) heard: VecDeque<Heard>,
    pub(super) said: VecDeque<Said>,
}

pub(super) enum Heard {
    Trigger(u64),
    Word(Word),
}

pub(super) enum Said {
    Saved(u64, Known),
    Opened(String),
    Finished,
}

pub(super) struct Job {
    pub(super) topology: Topology,
    pub(super) rules: Rules,
    pub(super) seed: u64,
    pub(super) growth: Growth,
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) streams: BTreeMap<(String, String), VecDeque<Piece<u32>>>,
    pub(super) pending: Option<Checkpoint>,
    pub(super) last: Checkpoint,
    pub(super) starts: usize,
    /// After so many items, about, a worker asks for others.
    pub(super) asks: usize,
    /// Who does nothing for a while.
    pub(super) slow: String,
}

/// How many numbers a feed emits.
pub(super) fn numbers(name: &str) -> u32 {
    if name == "feed.0" { 30 } else { 10 }
}

pub(super) fn feeds(name: &str) -> bool {
    name.starts_with("feed")
}

impl Job {
    pub(super) fn new(topology: Topology, rules: Rules, seed: u64) -> Self {
        let growth = Growth::new(&topology, &HashSet::new(), HashSet::new());
        let (nodes, streams) = (BTreeMap::new(), BTreeMap::new());
        let mut job = Self {
            topology,
            rules,
            seed,
            growth,
            nodes,
            streams,
            pending: None,
            last: Checkpoint::default(),
            starts: 0,
            asks: [5, 20, 100][seed as usize / 4 % 3],
            slow: String::new(),
        };
        job.begin();
        job
    }

    pub(super) fn chance(&mut self, of: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % of
    }

    /// An attempt, from the last checkpoint.
    pub(super) fn begin(&mut self) {
        let last = self.last.clone();
        let took_part = last.states.keys().cloned().collect();
        self.growth = Growth::new(&self.topology, &took_part, last.finished.keys().cloned().collect());
        (self.pending, self.nodes, self.streams) = (None, BTreeMap::new(), BTreeMap::new());
        let there = |worker: &&Worker| !worker.spare || last.states.contains_key(&worker.name);
        let names: Vec<String> = self.topology.workers.iter().filter(there).map(|worker| worker.name.clone()).collect();
        for name in names.iter().filter(|name| !last.finished.contains_key(*name)) {
            self.start(name);
            if let Some(stage) = self.asks(name) {
                let node = &self.nodes[name];
                let open = node.outputs.iter().filter(|output| output.later && output.open).count();
                self.growth.owe(name, &stage, node.known.given - open);
            }
        }
    }

    /// A stream that carried the checkpoint's barrier is open, or has ended. One with a spare worker that did not is not there; a
    /// worker that is started at run time reads its owner alone.
    pub(super) fn start(&mut self, name: &str) {
        let worker = self.topology.worker(name).unwrap();
        let owner = self.growth.grown().remove(name);
        let known = self.last.states.get(name).cloned().unwrap_or_default();
        let input = |from: &str, later: bool| match known.inputs.get(from).copied().unwrap_or(Some(0)) {
            _ if owner.is_some() => {
                if owner.as_deref() == Some(from) {
                    Start::After(0)
                } else {
                    Start::Ended
                }
            }
            Some(0) if later => Start::Later,
            Some(processed) if !self.last.finished.contains_key(from) => Start::After(processed),
            _ => Start::Ended,
        };
        let output = |to: &str, later: bool| {
            let sent = known.outputs.get(to).copied().unwrap_or(0);
            Output { to: to.to_owned(), sent, later, open: !later || sent > 0 }
        };
        let node = Node {
            merge: Merge::new(worker.sources().map(|from| input(&from.worker, from.later)), self.last.number),
            inputs: worker.sources().map(|from| from.worker.clone()).collect(),
            outputs: worker.targets().map(|to| output(&to.worker, to.later)).collect(),
            known,
            turn: 0,
            calls: 0,
            phase: Phase::Reading,
            heard: VecDeque::new(),
            said: VecDeque::new(),
        };
        self.nodes.insert(name.to_owned(), node);
    }

    /// The stage of which that worker may ask for more.
    pub(super) fn asks(&self, name: &str) -> Option<String> {
        let mut targets = self.topology.worker(name)?.targets();
        targets.find(|to| to.later)?.group.clone()
    }

    fn one_of_all(&mut self) -> Result<(), String> {
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        let name = names[self.chance(names.len())].clone();
        if self.chance(200) == 0 {
            self.slow.clone_from(&name);
        } else if self.slow == name {
            return Ok(());
        }
        match self.chance(10) {
            0..3 => self.step(&name),
            3..7 => {
                let at = self.chance(self.streams.len().max(1));
                self.carry(at)
            }
            7 => {
                self.hear(&name);
                Ok(())
            }
            8 => self.listen(&name),
            _ => {
                self.coordinate();
                Ok(())
            }
        }
    }

    pub(super) fn run(mut self, deaths: usize) -> Result<usize, String> {
        let mut dies: BTreeSet<usize> = (0..deaths).map(|_| self.chance(4000)).collect();
        for at in 0..100_000 {
            if dies.remove(&at) {
                self.begin();
            }
            if (dies.is_empty() || self.nodes.is_empty()) && self.nodes.keys().all(|name| self.is_finished(name)) {
                let finished = self.nodes.iter().map(|(name, node)| (name.clone(), node.known.clone()));
                let finished = self.last.finished.clone().into_iter().chain(finished).collect();
                exact(&Checkpoint { states: BTreeMap::new(), finished, ..self.last })?;
                return Ok(self.starts);
            }
            self.one_of_all()?;
        }
        Err("it does not end".to_owned())
    }
}

/// All that was emitted is kept, once.
pub(super) fn exact(at: &Checkpoint) -> Result<(), String> {
    let known = || at.states.iter().chain(&at.finished);
    let emitted = known()
        .filter(|(name, _)| feeds(name))
        .flat_map(|(name, known)| (0..known.place).map(move |item| item + if name == "feed.0" { 0 } else { 1000 }));
    let mut kept: Vec<u32> = known().flat_map(|(_, known)| known.kept.clone()).collect();
    kept.sort_unstable();
    let emitted: Vec<u32> = emitted.collect::<BTreeSet<_>>().into_iter().collect();
    if kept == emitted { Ok(()) } else { Err(format!("at {}: {kept:?} is kept of {emitted:?}", at.number)) }
}
