//! Workers that are started while the job runs: what its coordinator decides, without processes, streams or clock.
//!
//! All that there may ever be is in the [`JobTopology`]; who is [`spare`](crate::topology::Worker::spare) is started when a worker that it
//! reads asks for it, and reads that one alone: its owner. Its consumers open the stream from it, its owner the stream to it.
//!
//! A barrier must meet all streams of a worker or none that it does not know of, so streams open only between two checkpoints:
//!
//! ```text
//! ask ─► promised ─► between ─► opening ─► opened, by its owner and all its consumers ─► there
//!                    no checkpoint        none may begin (`holds`)
//!                    is under way
//! ```
//!
//! Nor may a consumer hear that a spare worker never comes while a checkpoint is under way: the workers that could ask may have
//! written down a moment at which they still could.

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::topology::{JobTopology, WorkerSpec};

/// What is known of all workers that may be started in one attempt.
#[derive(Clone, Debug)]
pub struct ScaleOut {
    /// In the topology's order.
    spares: Vec<SpareWorker>,
    /// Workers that have finished: they ask for nothing more.
    finished: HashSet<String>,
    /// For each worker: its last call, and what it was given.
    last_grants: HashMap<String, (u64, usize)>,
}

#[derive(Clone, Debug)]
struct SpareWorker {
    name: String,
    /// Those that may ask for it, each with its group of outputs in which this one is: in a graph, the stage's name.
    requesters: HashMap<String, String>,
    /// Those that will read it whoever its owner is.
    consumers: HashSet<String>,
    state: SpareState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SpareState {
    Available,
    /// To whom.
    Reserved(String),
    /// Whose it is, and whose word is missing.
    Opening(String, BTreeSet<String>),
    /// Since then; or since a checkpoint, and then its owner knows for itself.
    Running(Option<String>),
    /// Nobody is left who may ask.
    Unused,
}

/// What a worker is to be told: everything, each time. To hear it again does no harm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EdgeUpdate {
    /// Inputs that are to be open, by producer.
    pub inputs: Vec<String>,
    /// Outputs that are to be open, by consumer: as soon as that one is there.
    pub outputs: Vec<String>,
    /// Inputs that never open.
    pub unused: Vec<String>,
}

impl SpareWorker {
    fn new(worker: &WorkerSpec) -> Self {
        let consumers = worker
            .target_streams()
            .filter(|to| !to.later)
            .map(|to| to.worker.clone())
            .collect();
        Self {
            name: worker.name.clone(),
            requesters: HashMap::new(),
            consumers,
            state: SpareState::Available,
        }
    }

    fn owner(&self) -> Option<&str> {
        match &self.state {
            SpareState::Reserved(owner)
            | SpareState::Opening(owner, _)
            | SpareState::Running(Some(owner)) => Some(owner),
            SpareState::Available | SpareState::Running(None) | SpareState::Unused => None,
        }
    }

    /// It is there, or on its way.
    fn is_starting_or_running(&self) -> bool {
        matches!(self.state, SpareState::Opening(..) | SpareState::Running(_))
    }
}

impl ScaleOut {
    /// At the beginning of an attempt: who has taken part in the last checkpoint, and who had finished by then.
    pub fn new(
        topology: &JobTopology,
        resumed: &HashSet<String>,
        finished: HashSet<String>,
    ) -> Self {
        let mut spares: Vec<SpareWorker> = topology
            .workers
            .iter()
            .filter(|worker| worker.spare)
            .map(SpareWorker::new)
            .collect();
        let mut by_name: HashMap<String, &mut SpareWorker> = spares
            .iter_mut()
            .map(|spare| (spare.name.clone(), spare))
            .collect();
        for worker in &topology.workers {
            for to in worker.target_streams() {
                if let Some(spare) = by_name.get_mut(&to.worker) {
                    spare.requesters.insert(
                        worker.name.clone(),
                        to.group.clone().unwrap_or_else(|| to.worker.clone()),
                    );
                }
            }
        }
        for spare in spares
            .iter_mut()
            .filter(|spare| resumed.contains(&spare.name) || finished.contains(&spare.name))
        {
            spare.state = SpareState::Running(None);
        }
        Self {
            spares,
            finished,
            last_grants: HashMap::new(),
        }
    }

    /// By the checkpoint from which it goes on, a worker had been given so many of that stage that had not been started by then:
    /// they are promised once more. To be said of all workers before any of them asks.
    pub fn restore_reservation(&mut self, worker: &str, stage: &str, count: usize) {
        self.reserve(worker, stage, count);
    }

    /// A worker asks for so many more of a stage that reads it (a group of its outputs): how many it gets. `call` counts its calls;
    /// the last one may be said again, and gets the same answer.
    pub fn request_workers(
        &mut self,
        worker: &str,
        request: u64,
        stage: &str,
        count: usize,
    ) -> usize {
        match self.last_grants.get(worker) {
            Some((last, granted)) if *last >= request => *granted,
            _ => {
                let granted = self.reserve(worker, stage, count);
                self.last_grants
                    .insert(worker.to_owned(), (request, granted));
                granted
            }
        }
    }

    fn reserve(&mut self, worker: &str, stage: &str, count: usize) -> usize {
        let of_stage = |spare: &SpareWorker| {
            spare
                .requesters
                .get(worker)
                .is_some_and(|group| group == stage)
        };
        let free =
            |spare: &&mut SpareWorker| spare.state == SpareState::Available && of_stage(spare);
        let reserved = self.spares.iter_mut().filter(free).take(count);
        reserved
            .map(|spare| spare.state = SpareState::Reserved(worker.to_owned()))
            .count()
    }

    /// No checkpoint is under way, and none begins before this returns: what was promised begins to open, and who can never come
    /// any more is known. Whether there is something new to tell.
    pub fn between_checkpoints(&mut self) -> bool {
        let mut changed = false;
        for spare in &mut self.spares {
            if let SpareState::Reserved(owner) = &spare.state {
                let awaited = spare
                    .consumers
                    .iter()
                    .chain([owner])
                    .filter(|worker| !self.finished.contains(*worker));
                spare.state = SpareState::Opening(owner.clone(), awaited.cloned().collect());
                changed = true;
            }
        }
        while self.mark_one_unused() {
            changed = true;
        }
        changed
    }

    /// A spare worker that nobody can ask for any more: all that it reads have finished, or never come themselves.
    fn mark_one_unused(&mut self) -> bool {
        let never = self
            .spares
            .iter()
            .filter(|spare| spare.state == SpareState::Unused)
            .map(|spare| &spare.name);
        let unreachable: HashSet<&String> = never.chain(&self.finished).collect();
        let is_unreachable = |spare: &SpareWorker| {
            spare.state == SpareState::Available
                && spare
                    .requesters
                    .keys()
                    .all(|from| unreachable.contains(from))
        };
        let Some(at) = self.spares.iter().position(is_unreachable) else {
            return false;
        };
        self.spares[at].state = SpareState::Unused;
        true
    }

    /// Whether no checkpoint may begin now.
    pub fn blocks_checkpoints(&self) -> bool {
        self.spares
            .iter()
            .any(|spare| matches!(spare.state, SpareState::Opening(..)))
    }

    /// A worker has opened its stream from or to that spare worker.
    pub fn record_opened(&mut self, worker: &str, spare: &str) {
        let Some(spare) = self.spares.iter_mut().find(|other| other.name == spare) else {
            return;
        };
        if let SpareState::Opening(owner, awaited) = &mut spare.state {
            awaited.remove(worker);
            if awaited.is_empty() {
                spare.state = SpareState::Running(Some(owner.clone()));
            }
        }
    }

    /// A worker is through.
    pub fn record_finished(&mut self, worker: &str) {
        self.finished.insert(worker.to_owned());
    }

    /// What that worker is to be told.
    pub fn edge_update(&self, worker: &str) -> EdgeUpdate {
        let names = |of: &dyn Fn(&&SpareWorker) -> bool| {
            self.spares
                .iter()
                .filter(of)
                .map(|spare| spare.name.clone())
                .collect()
        };
        EdgeUpdate {
            inputs: names(&|spare| {
                spare.is_starting_or_running() && spare.consumers.contains(worker)
            }),
            outputs: names(&|spare| {
                spare.is_starting_or_running() && spare.owner() == Some(worker)
            }),
            unused: names(&|spare| {
                spare.state == SpareState::Unused && spare.consumers.contains(worker)
            }),
        }
    }

    /// Workers that were asked for in this attempt and are to run, with their owners.
    pub fn started_workers(&self) -> BTreeMap<String, String> {
        let opens = self
            .spares
            .iter()
            .filter(|spare| spare.is_starting_or_running());
        opens
            .filter_map(|spare| Some((spare.name.clone(), spare.owner()?.to_owned())))
            .collect()
    }
}
