//! Workers that start while the job runs: decisions of the coordinator, without processes, streams
//! or clock.
//!
//! The [`JobTopology`] contains every possible worker. A
//! [`spare`](crate::topology::WorkerSpec::spare) worker starts when a worker that it reads requests
//! it, and reads only that one: its owner. Its consumers open the stream from it, its owner the
//! stream to it.
//!
//! A barrier must pass through all streams of a worker or through none that it does not know. So
//! streams open only between two checkpoints:
//!
//! ```text
//! request ─► reserved ─► between checkpoints ─► opening ─► opened by its owner and all its consumers ─► running
//! no checkpoint may begin (`blocks_checkpoints`)
//! ```
//!
//! A consumer must not learn during a checkpoint that a spare worker stays unused: workers that
//! could request it may have saved a state in which they still could.

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::topology::{JobTopology, WorkerSpec};

/// State of all spare workers in one attempt.
#[derive(Clone, Debug)]
pub struct ScaleOut {
    /// Spare workers, in the order of the topology.
    spares: Vec<SpareWorker>,
    /// Workers that have finished and request nothing more.
    finished: HashSet<String>,
    /// Number of the last request of each worker, and the workers granted for it.
    last_grants: HashMap<String, (u64, usize)>,
}

#[derive(Clone, Debug)]
struct SpareWorker {
    name: String,
    /// Workers that may request it, each with its output group that contains this worker: in a
    /// graph, the stage's name.
    requesters: HashMap<String, String>,
    /// Workers that read it, whatever its owner.
    consumers: HashSet<String>,
    state: SpareState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SpareState {
    Available,
    /// For this owner.
    Reserved(String),
    /// For this owner; these workers have not opened their streams yet.
    Opening(String, BTreeSet<String>),
    /// For this owner. `None` when it resumed from a checkpoint: then the owner's own state lists
    /// the stream.
    Running(Option<String>),
    /// No worker is left that could request it.
    Unused,
}

/// Streams of one worker that change: the whole state each time. Receiving it twice is harmless.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EdgeUpdate {
    /// Inputs to open, by producer.
    pub inputs: Vec<String>,
    /// Outputs to open, by consumer.
    pub outputs: Vec<String>,
    /// Inputs that never open.
    pub unused: Vec<String>,
}

impl SpareWorker {
    fn new(worker: &WorkerSpec) -> Self {
        let consumers = worker
            .target_streams()
            .filter(|to| !to.pending)
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

    /// True when it runs or is about to.
    fn is_starting_or_running(&self) -> bool {
        matches!(self.state, SpareState::Opening(..) | SpareState::Running(_))
    }
}

impl ScaleOut {
    /// State at the start of an attempt. `resumed` are the workers with a state in the last
    /// checkpoint, `finished` those that had finished by then.
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
            // Part of the checkpoint, so it runs again without a request.
            spare.state = SpareState::Running(None);
        }
        Self {
            spares,
            finished,
            last_grants: HashMap::new(),
        }
    }

    /// Reserves workers that a checkpoint shows as granted but not started. To be called for all
    /// workers before any request.
    pub fn restore_reservation(&mut self, worker: &str, stage: &str, count: usize) {
        self.reserve(worker, stage, count);
    }

    /// Handles a request of a worker for `count` more workers of a stage (an output group). Returns
    /// the number granted. `request` numbers the requests of a worker; a repeated request gets the
    /// same reply.
    pub fn request_workers(
        &mut self,
        worker: &str,
        request: u64,
        stage: &str,
        count: usize,
    ) -> usize {
        match self.last_grants.get(worker) {
            // Control messages are repeated until they are answered; a repetition must not grant
            // again.
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

    /// To be called while no checkpoint is in progress, before the next one begins. Starts to open
    /// reserved workers and finds those that stay unused. Returns true when there are updates to
    /// send.
    pub fn between_checkpoints(&mut self) -> bool {
        let mut changed = false;
        for spare in &mut self.spares {
            if let SpareState::Reserved(owner) = &spare.state {
                // Finished workers will not confirm any more, and need no stream.
                let awaited = spare
                    .consumers
                    .iter()
                    .chain([owner])
                    .filter(|worker| !self.finished.contains(*worker));
                spare.state = SpareState::Opening(owner.clone(), awaited.cloned().collect());
                changed = true;
            }
        }
        // One at a time: an unused worker requests nothing, which may make the next one
        // unreachable.
        while self.mark_one_unused() {
            changed = true;
        }
        changed
    }

    /// Marks a spare worker that cannot be requested any more: all its requesters have finished or
    /// stay unused.
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

    /// True while no checkpoint may begin.
    pub fn blocks_checkpoints(&self) -> bool {
        self.spares
            .iter()
            .any(|spare| matches!(spare.state, SpareState::Opening(..)))
    }

    /// Records that a worker has opened its stream from or to a spare worker.
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

    /// Records that a worker has finished.
    pub fn record_finished(&mut self, worker: &str) {
        self.finished.insert(worker.to_owned());
    }

    /// Update for a worker.
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

    /// Workers that were requested in this attempt and are to run, with their owners.
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
