//! The simulated coordinator, correct or with one rule broken.

use super::CoordinatorRules;
use super::job::{
    JobCheckpoint, SimCoordinatorMessage, SimWorkerMessage, SimulatedJob, WorkerPhase,
    check_exactly_once,
};

impl SimulatedJob {
    pub(super) fn receive_from_worker(&mut self, name: &str) -> Result<(), String> {
        match self
            .workers
            .get_mut(name)
            .unwrap()
            .to_coordinator
            .pop_front()
        {
            Some(SimWorkerMessage::Saved(number, known)) => {
                let pending = self
                    .pending
                    .as_mut()
                    .filter(|pending| pending.number == number);
                pending
                    .ok_or("saved a checkpoint that is not in progress")?
                    .states
                    .insert(name.to_owned(), known);
            }
            Some(SimWorkerMessage::Opened(spare)) => self.scale_out.record_opened(name, &spare),
            Some(SimWorkerMessage::Finished) => self.scale_out.record_finished(name),
            None => {}
        }
        self.complete_checkpoint()
    }

    pub(super) fn is_finished(&self, name: &str) -> bool {
        let node = &self.workers[name];
        node.phase == WorkerPhase::Finished
            && !node
                .to_coordinator
                .iter()
                .any(|message| matches!(message, SimWorkerMessage::Finished))
    }

    fn complete_checkpoint(&mut self) -> Result<(), String> {
        let Some(pending) = &self.pending else {
            return Ok(());
        };
        let missing =
            |name: &&String| !pending.states.contains_key(*name) && !self.is_finished(name);
        if self.workers.keys().any(|name| missing(&name)) {
            return Ok(());
        }
        let mut done = self.pending.take().unwrap();
        done.finished = self.last.finished.clone();
        let finished = self
            .workers
            .iter()
            .filter(|(name, _)| !done.states.contains_key(*name));
        done.finished
            .extend(finished.map(|(name, node)| (name.clone(), node.state.clone())));
        self.last = done;
        check_exactly_once(&self.last)?;
        let too_early = self
            .last
            .states
            .iter()
            .find(|(name, known)| known.ended && self.expects_more_input(name));
        too_early.map_or(Ok(()), |(name, _)| {
            Err(format!("{name} had ended, and more may come"))
        })
    }

    /// True when a worker that this one reads resumes from the last checkpoint, or may still start.
    fn expects_more_input(&self, name: &str) -> bool {
        let never = |from: &&str| match self.last.states.get(name) {
            Some(known) => known.inputs.get(*from) == Some(&Some(0)),
            None => true,
        };
        let sources = self
            .topology
            .find_worker(name)
            .unwrap()
            .source_streams()
            .map(|from| &*from.worker);
        sources
            .filter(never)
            .any(|from| match self.topology.find_worker(from) {
                _ if self.last.states.contains_key(from) => true,
                _ if self.last.finished.contains_key(from) => false,
                _ => self.expects_more_input(from),
            })
    }

    pub(super) fn coordinator_step(&mut self) {
        if self.pending.is_none()
            && (self.rules == CoordinatorRules::IgnoreBlocks
                || !self.scale_out.blocks_checkpoints())
            && self.random_below(3) == 0
        {
            self.pending = Some(JobCheckpoint {
                number: self.last.number + 1,
                ..JobCheckpoint::default()
            });
            let number = self.last.number + 1;
            self.workers.values_mut().for_each(|node| {
                node.to_worker
                    .push_back(SimCoordinatorMessage::Trigger(number))
            });
        } else if self.try_scale_out() {
            self.announce_updates();
        }
    }

    fn try_scale_out(&mut self) -> bool {
        match self.rules {
            CoordinatorRules::GiveUpDuringCheckpoint if self.pending.is_some() => {
                self.scale_out.mark_one_unused()
            }
            CoordinatorRules::OpenDuringCheckpoint => self.scale_out.between_checkpoints(),
            _ => self.pending.is_none() && self.scale_out.between_checkpoints(),
        }
    }

    /// Starts requested workers and sends every worker its update.
    fn announce_updates(&mut self) {
        for name in self.scale_out.started_workers().into_keys() {
            if !self.workers.contains_key(&name) && !self.last.finished.contains_key(&name) {
                self.start_worker(&name);
                self.started += 1;
            }
        }
        for (name, node) in &mut self.workers {
            node.to_worker.push_back(SimCoordinatorMessage::EdgeUpdate(
                self.scale_out.edge_update(name),
            ));
        }
    }
}
