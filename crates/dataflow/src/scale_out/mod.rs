//! Workers that are started while the job runs: what its coordinator decides, without processes, streams or clock.
//!
//! All that there may ever be is in the [`Topology`]; who is [`spare`](crate::topology::Worker::spare) is started when a worker that it
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

use crate::topology::{Topology, Worker};

/// What is known of all workers that may be started in one attempt.
#[derive(Clone, Debug)]
pub struct Growth {
    /// In the topology's order.
    spares: Vec<Spare>,
    /// Workers that have finished: they ask for nothing more.
    finished: HashSet<String>,
    /// For each worker: its last call, and what it was given.
    answers: HashMap<String, (u64, usize)>,
}

#[derive(Clone, Debug)]
struct Spare {
    name: String,
    /// Those that may ask for it, each with its group of outputs in which this one is: in a graph, the stage's name.
    sources: HashMap<String, String>,
    /// Those that will read it whoever its owner is.
    readers: HashSet<String>,
    fate: Fate,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    Free,
    /// To whom.
    Promised(String),
    /// Whose it is, and whose word is missing.
    Opening(String, BTreeSet<String>),
    /// Since then; or since a checkpoint, and then its owner knows for itself.
    There(Option<String>),
    /// Nobody is left who may ask.
    Never,
}

/// What a worker is to be told: everything, each time. To hear it again does no harm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// Inputs that are to be open, by producer.
    pub inputs: Vec<String>,
    /// Outputs that are to be open, by consumer: as soon as that one is there.
    pub outputs: Vec<String>,
    /// Inputs that never open.
    pub never: Vec<String>,
}

impl Spare {
    fn new(worker: &Worker) -> Self {
        let readers = worker.targets().filter(|to| !to.later).map(|to| to.worker.clone()).collect();
        Self { name: worker.name.clone(), sources: HashMap::new(), readers, fate: Fate::Free }
    }

    fn owner(&self) -> Option<&str> {
        match &self.fate {
            Fate::Promised(owner) | Fate::Opening(owner, _) | Fate::There(Some(owner)) => Some(owner),
            Fate::Free | Fate::There(None) | Fate::Never => None,
        }
    }

    /// It is there, or on its way.
    fn opens(&self) -> bool {
        matches!(self.fate, Fate::Opening(..) | Fate::There(_))
    }
}

impl Growth {
    /// At the beginning of an attempt: who has taken part in the last checkpoint, and who had finished by then.
    pub fn new(topology: &Topology, took_part: &HashSet<String>, finished: HashSet<String>) -> Self {
        let mut spares: Vec<Spare> = topology.workers.iter().filter(|worker| worker.spare).map(Spare::new).collect();
        let mut places: HashMap<String, &mut Spare> =
            spares.iter_mut().map(|spare| (spare.name.clone(), spare)).collect();
        for worker in &topology.workers {
            for to in worker.targets() {
                if let Some(spare) = places.get_mut(&to.worker) {
                    spare.sources.insert(worker.name.clone(), to.group.clone().unwrap_or_else(|| to.worker.clone()));
                }
            }
        }
        for spare in spares.iter_mut().filter(|spare| took_part.contains(&spare.name) || finished.contains(&spare.name))
        {
            spare.fate = Fate::There(None);
        }
        Self { spares, finished, answers: HashMap::new() }
    }

    /// By the checkpoint from which it goes on, a worker had been given so many of that stage that had not been started by then:
    /// they are promised once more. To be said of all workers before any of them asks.
    pub fn owe(&mut self, worker: &str, stage: &str, count: usize) {
        self.promise(worker, stage, count);
    }

    /// A worker asks for so many more of a stage that reads it (a group of its outputs): how many it gets. `call` counts its calls;
    /// the last one may be said again, and gets the same answer.
    pub fn ask(&mut self, worker: &str, call: u64, stage: &str, count: usize) -> usize {
        match self.answers.get(worker) {
            Some((last, given)) if *last >= call => *given,
            _ => {
                let given = self.promise(worker, stage, count);
                self.answers.insert(worker.to_owned(), (call, given));
                given
            }
        }
    }

    fn promise(&mut self, worker: &str, stage: &str, count: usize) -> usize {
        let of_stage = |spare: &Spare| spare.sources.get(worker).is_some_and(|group| group == stage);
        let free = |spare: &&mut Spare| spare.fate == Fate::Free && of_stage(spare);
        let given = self.spares.iter_mut().filter(free).take(count);
        given.map(|spare| spare.fate = Fate::Promised(worker.to_owned())).count()
    }

    /// No checkpoint is under way, and none begins before this returns: what was promised begins to open, and who can never come
    /// any more is known. Whether there is something new to tell.
    pub fn between(&mut self) -> bool {
        let mut changed = false;
        for spare in &mut self.spares {
            if let Fate::Promised(owner) = &spare.fate {
                let awaited = spare.readers.iter().chain([owner]).filter(|worker| !self.finished.contains(*worker));
                spare.fate = Fate::Opening(owner.clone(), awaited.cloned().collect());
                changed = true;
            }
        }
        while self.give_up_one() {
            changed = true;
        }
        changed
    }

    /// A spare worker that nobody can ask for any more: all that it reads have finished, or never come themselves.
    fn give_up_one(&mut self) -> bool {
        let never = self.spares.iter().filter(|spare| spare.fate == Fate::Never).map(|spare| &spare.name);
        let gone: HashSet<&String> = never.chain(&self.finished).collect();
        let silent = |spare: &Spare| spare.fate == Fate::Free && spare.sources.keys().all(|from| gone.contains(from));
        let Some(at) = self.spares.iter().position(silent) else { return false };
        self.spares[at].fate = Fate::Never;
        true
    }

    /// Whether no checkpoint may begin now.
    pub fn holds(&self) -> bool {
        self.spares.iter().any(|spare| matches!(spare.fate, Fate::Opening(..)))
    }

    /// A worker has opened its stream from or to that spare worker.
    pub fn opened(&mut self, worker: &str, spare: &str) {
        let Some(spare) = self.spares.iter_mut().find(|other| other.name == spare) else { return };
        if let Fate::Opening(owner, awaited) = &mut spare.fate {
            awaited.remove(worker);
            if awaited.is_empty() {
                spare.fate = Fate::There(Some(owner.clone()));
            }
        }
    }

    /// A worker is through.
    pub fn finished(&mut self, worker: &str) {
        self.finished.insert(worker.to_owned());
    }

    /// What that worker is to be told.
    pub fn word(&self, worker: &str) -> Word {
        let names =
            |of: &dyn Fn(&&Spare) -> bool| self.spares.iter().filter(of).map(|spare| spare.name.clone()).collect();
        Word {
            inputs: names(&|spare| spare.opens() && spare.readers.contains(worker)),
            outputs: names(&|spare| spare.opens() && spare.owner() == Some(worker)),
            never: names(&|spare| spare.fate == Fate::Never && spare.readers.contains(worker)),
        }
    }

    /// Workers that were asked for in this attempt and are to run, with their owners.
    pub fn grown(&self) -> BTreeMap<String, String> {
        let opens = self.spares.iter().filter(|spare| spare.opens());
        opens.filter_map(|spare| Some((spare.name.clone(), spare.owner()?.to_owned()))).collect()
    }
}
