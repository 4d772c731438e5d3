//! State of a simulated job, which advances one random step at a time.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use super::CoordinatorRules;
use crate::flow::{InputMerge, InputStart, StreamItem};
use crate::scale_out::{EdgeUpdate, ScaleOut};
use crate::topology::{JobTopology, WorkerSpec};

/// State that a worker saves at its barrier.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkerState {
    /// Next item that a feed emits.
    pub(super) next_item: u32,
    pub(super) kept: Vec<u32>,
    pub(super) granted: usize,
    /// Its inputs have ended, so its last output may be in flight.
    pub(super) ended: bool,
    pub(super) inputs: BTreeMap<String, Option<u64>>,
    pub(super) outputs: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct JobCheckpoint {
    pub(super) number: u64,
    pub(super) states: BTreeMap<String, WorkerState>,
    pub(super) finished: BTreeMap<String, WorkerState>,
}

pub(super) struct SimOutput {
    pub(super) to: String,
    pub(super) sent: u64,
    pub(super) pending: bool,
    pub(super) open: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum WorkerPhase {
    Reading,
    Ended,
    /// Its ends are sent.
    Waiting,
    Finished,
}

pub(super) struct SimWorker {
    pub(super) state: WorkerState,
    pub(super) merge: InputMerge<u32>,
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<SimOutput>,
    pub(super) turn: usize,
    pub(super) requests: u64,
    pub(super) phase: WorkerPhase,
    /// Messages in flight from and to the coordinator.
    pub(super) to_worker: VecDeque<SimCoordinatorMessage>,
    pub(super) to_coordinator: VecDeque<SimWorkerMessage>,
}

pub(super) enum SimCoordinatorMessage {
    Trigger(u64),
    EdgeUpdate(EdgeUpdate),
}

pub(super) enum SimWorkerMessage {
    Saved(u64, WorkerState),
    Opened(String),
    Finished,
}

pub(super) struct SimulatedJob {
    pub(super) topology: JobTopology,
    pub(super) rules: CoordinatorRules,
    pub(super) seed: u64,
    pub(super) scale_out: ScaleOut,
    pub(super) workers: BTreeMap<String, SimWorker>,
    pub(super) streams: BTreeMap<(String, String), VecDeque<StreamItem<u32>>>,
    pub(super) pending: Option<JobCheckpoint>,
    pub(super) last: JobCheckpoint,
    pub(super) started: usize,
    /// A worker requests others after about this many items.
    pub(super) request_odds: usize,
    /// Name of a worker that makes no steps for a while.
    pub(super) paused: String,
}

/// Number of items that a feed emits.
pub(super) fn item_count(name: &str) -> u32 {
    if name == "feed.0" { 30 } else { 10 }
}

pub(super) fn is_feed(name: &str) -> bool {
    name.starts_with("feed")
}

impl SimulatedJob {
    pub(super) fn new(topology: JobTopology, rules: CoordinatorRules, seed: u64) -> Self {
        let scale_out = ScaleOut::new(&topology, &HashSet::new(), HashSet::new());
        let (nodes, streams) = (BTreeMap::new(), BTreeMap::new());
        let mut job = Self {
            topology,
            rules,
            seed,
            scale_out,
            workers: nodes,
            streams,
            pending: None,
            last: JobCheckpoint::default(),
            started: 0,
            request_odds: [5, 20, 100][seed as usize / 4 % 3],
            paused: String::new(),
        };
        job.start_attempt();
        job
    }

    pub(super) fn random_below(&mut self, of: usize) -> usize {
        // Knuth's MMIX generator: the same seed always gives the same run. The high bits are the
        // random ones.
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % of
    }

    /// Starts an attempt from the last checkpoint.
    pub(super) fn start_attempt(&mut self) {
        let last = self.last.clone();
        let took_part = last.states.keys().cloned().collect();
        self.scale_out = ScaleOut::new(
            &self.topology,
            &took_part,
            last.finished.keys().cloned().collect(),
        );
        (self.pending, self.workers, self.streams) = (None, BTreeMap::new(), BTreeMap::new());
        let there = |worker: &&WorkerSpec| !worker.spare || last.states.contains_key(&worker.name);
        let names: Vec<String> = self
            .topology
            .workers
            .iter()
            .filter(there)
            .map(|worker| worker.name.clone())
            .collect();
        for name in names
            .iter()
            .filter(|name| !last.finished.contains_key(*name))
        {
            self.start_worker(name);
            if let Some(stage) = self.requestable_stage(name) {
                let node = &self.workers[name];
                let open = node
                    .outputs
                    .iter()
                    .filter(|output| output.pending && output.open)
                    .count();
                self.scale_out
                    .restore_reservation(name, &stage, node.state.granted - open);
            }
        }
    }

    /// Starts a worker. A stream is open, or has ended, when it carried the checkpoint's barrier.
    /// Other streams with spare workers are closed. A worker that starts at run time reads its
    /// owner alone.
    pub(super) fn start_worker(&mut self, name: &str) {
        let worker = self.topology.find_worker(name).unwrap();
        let owner = self.scale_out.started_workers().remove(name);
        let known = self.last.states.get(name).cloned().unwrap_or_default();
        let input =
            |from: &str, pending: bool| match known.inputs.get(from).copied().unwrap_or(Some(0)) {
                _ if owner.is_some() => {
                    if owner.as_deref() == Some(from) {
                        InputStart::After(0)
                    } else {
                        InputStart::Ended
                    }
                }
                Some(0) if pending => InputStart::Undecided,
                Some(processed) if !self.last.finished.contains_key(from) => {
                    InputStart::After(processed)
                }
                _ => InputStart::Ended,
            };
        let output = |to: &str, pending: bool| {
            let sent = known.outputs.get(to).copied().unwrap_or(0);
            SimOutput {
                to: to.to_owned(),
                sent,
                pending,
                open: !pending || sent > 0,
            }
        };
        let node = SimWorker {
            merge: InputMerge::new(
                worker
                    .source_streams()
                    .map(|from| input(&from.worker, from.pending)),
                self.last.number,
            ),
            inputs: worker
                .source_streams()
                .map(|from| from.worker.clone())
                .collect(),
            outputs: worker
                .target_streams()
                .map(|to| output(&to.worker, to.pending))
                .collect(),
            state: known,
            turn: 0,
            requests: 0,
            phase: WorkerPhase::Reading,
            to_worker: VecDeque::new(),
            to_coordinator: VecDeque::new(),
        };
        self.workers.insert(name.to_owned(), node);
    }

    /// Stage of which the worker may request more.
    pub(super) fn requestable_stage(&self, name: &str) -> Option<String> {
        let mut targets = self.topology.find_worker(name)?.target_streams();
        targets.find(|to| to.pending)?.group.clone()
    }

    fn random_step(&mut self) -> Result<(), String> {
        let names: Vec<String> = self.workers.keys().cloned().collect();
        let name = names[self.random_below(names.len())].clone();
        if self.random_below(200) == 0 {
            self.paused.clone_from(&name);
        } else if self.paused == name {
            return Ok(());
        }
        match self.random_below(10) {
            0..3 => self.worker_step(&name),
            3..7 => {
                let at = self.random_below(self.streams.len().max(1));
                self.deliver_frame(at)
            }
            7 => {
                self.receive_from_coordinator(&name);
                Ok(())
            }
            8 => self.receive_from_worker(&name),
            _ => {
                self.coordinator_step();
                Ok(())
            }
        }
    }

    pub(super) fn run_with_deaths(mut self, deaths: usize) -> Result<usize, String> {
        let mut dies: BTreeSet<usize> = (0..deaths).map(|_| self.random_below(4000)).collect();
        for at in 0..100_000 {
            if dies.remove(&at) {
                self.start_attempt();
            }
            if (dies.is_empty() || self.workers.is_empty())
                && self.workers.keys().all(|name| self.is_finished(name))
            {
                let finished = self
                    .workers
                    .iter()
                    .map(|(name, node)| (name.clone(), node.state.clone()));
                let finished = self
                    .last
                    .finished
                    .clone()
                    .into_iter()
                    .chain(finished)
                    .collect();
                check_exactly_once(&JobCheckpoint {
                    states: BTreeMap::new(),
                    finished,
                    ..self.last
                })?;
                return Ok(self.started);
            }
            self.random_step()?;
        }
        Err("it does not end".to_owned())
    }
}

/// Checks that every emitted item is kept exactly once.
pub(super) fn check_exactly_once(at: &JobCheckpoint) -> Result<(), String> {
    let known = || at.states.iter().chain(&at.finished);
    let emitted = known()
        .filter(|(name, _)| is_feed(name))
        .flat_map(|(name, known)| {
            (0..known.next_item).map(move |item| item + if name == "feed.0" { 0 } else { 1000 })
        });
    let mut kept: Vec<u32> = known().flat_map(|(_, known)| known.kept.clone()).collect();
    kept.sort_unstable();
    let emitted: Vec<u32> = emitted.collect::<BTreeSet<_>>().into_iter().collect();
    if kept == emitted {
        Ok(())
    } else {
        Err(format!("at {}: {kept:?} is kept of {emitted:?}", at.number))
    }
}
