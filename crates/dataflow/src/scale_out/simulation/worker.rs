//! Simulated workers: feeds emit items, others forward them, the last stage keeps them.

use super::job::{
    SimCoordinatorMessage, SimOutput, SimWorker, SimWorkerMessage, SimulatedJob, WorkerPhase,
    WorkerState, is_feed, item_count,
};
use crate::flow::{MergeStep, StreamItem};

impl SimulatedJob {
    pub(super) fn worker_step(&mut self, name: &str) -> Result<(), String> {
        let node = &self.workers[name];
        match node.phase {
            WorkerPhase::Reading if is_feed(name) => self.emit_item(name),
            WorkerPhase::Reading => self.read_input(name)?,
            WorkerPhase::Ended => self.end_outputs(name),
            WorkerPhase::Waiting => self.wait_for_consumers(name),
            WorkerPhase::Finished => {}
        }
        Ok(())
    }

    fn emit_item(&mut self, name: &str) {
        let (is_requesting, count) = (
            self.random_below(self.request_odds) == 0,
            1 + self.random_below(2),
        );
        let node = self.workers.get_mut(name).unwrap();
        if let Some(number) = node.merge.take_due_barrier() {
            return self.take_barrier(name, number);
        }
        if node.state.next_item == item_count(name) {
            node.phase = WorkerPhase::Ended;
        } else if is_requesting {
            self.request_workers(name, count);
        } else {
            let item = node.state.next_item + if name == "feed.0" { 0 } else { 1000 };
            node.state.next_item += 1;
            self.send_item(name, StreamItem::Batch(item));
        }
    }

    fn read_input(&mut self, name: &str) -> Result<(), String> {
        let is_requesting = self.random_below(self.request_odds) == 0;
        match self
            .workers
            .get_mut(name)
            .unwrap()
            .merge
            .next_step()
            .map_err(|error| format!("{name}: {error}"))?
        {
            MergeStep::Batch { data, .. } => {
                if is_requesting {
                    self.request_workers(name, 1);
                }
                self.send_item(name, StreamItem::Batch(data));
            }
            MergeStep::Barrier(number) => self.take_barrier(name, number),
            MergeStep::Ended => self.workers.get_mut(name).unwrap().phase = WorkerPhase::Ended,
            MergeStep::Idle => {}
        }
        Ok(())
    }

    fn request_workers(&mut self, name: &str, count: usize) {
        if let Some(stage) = self.requestable_stage(name) {
            let node = self.workers.get_mut(name).unwrap();
            node.requests += 1;
            node.state.granted +=
                self.scale_out
                    .request_workers(name, node.requests, &stage, count);
        }
    }

    /// Sends the ends once all granted workers have opened; until then barriers pass.
    fn end_outputs(&mut self, name: &str) {
        let node = self.workers.get_mut(name).unwrap();
        if let Some(number) = node.merge.take_due_barrier() {
            return self.take_barrier(name, number);
        }
        if node
            .outputs
            .iter()
            .filter(|output| output.pending && output.open)
            .count()
            == node.state.granted
        {
            node.phase = WorkerPhase::Waiting;
            self.send_item(name, StreamItem::End);
        }
    }

    fn wait_for_consumers(&mut self, name: &str) {
        let done = |output: &&SimOutput| {
            let ended = |other: &SimWorker| {
                other
                    .merge
                    .has_ended(other.inputs.iter().position(|from| from == name).unwrap())
            };
            self.workers.get(&output.to).is_some_and(ended)
        };
        let open: Vec<_> = self.workers[name]
            .outputs
            .iter()
            .filter(|output| output.open)
            .collect();
        if open.iter().all(done) {
            let node = self.workers.get_mut(name).unwrap();
            node.phase = WorkerPhase::Finished;
            node.to_coordinator.push_back(SimWorkerMessage::Finished);
        }
    }

    /// Sends a batch to one open output in turn, other items to all open outputs.
    fn send_item(&mut self, name: &str, piece: StreamItem<u32>) {
        let node = self.workers.get_mut(name).unwrap();
        let open: Vec<usize> = (0..node.outputs.len())
            .filter(|&at| node.outputs[at].open)
            .collect();
        let to = match piece {
            StreamItem::Batch(item) if open.is_empty() => return node.state.kept.push(item),
            StreamItem::Batch(_) => {
                node.turn = (node.turn + 1) % open.len();
                open[node.turn..=node.turn].to_vec()
            }
            _ => open,
        };
        for at in to {
            let output = &mut node.outputs[at];
            output.sent += 1;
            self.streams
                .entry((name.to_owned(), output.to.clone()))
                .or_default()
                .push_back(piece.clone());
        }
    }

    fn take_barrier(&mut self, name: &str, number: u64) {
        self.send_item(name, StreamItem::Barrier(number));
        let node = self.workers.get_mut(name).unwrap();
        let inputs = node
            .inputs
            .iter()
            .cloned()
            .zip(node.merge.positions())
            .collect();
        let outputs = node
            .outputs
            .iter()
            .map(|output| (output.to.clone(), output.sent))
            .collect();
        node.to_coordinator.push_back(SimWorkerMessage::Saved(
            number,
            WorkerState {
                inputs,
                outputs,
                ended: node.phase == WorkerPhase::Ended,
                ..node.state.clone()
            },
        ));
    }

    pub(super) fn receive_from_coordinator(&mut self, name: &str) {
        let node = self.workers.get_mut(name).unwrap();
        let update = match node.to_worker.pop_front() {
            Some(SimCoordinatorMessage::EdgeUpdate(word)) => word,
            Some(SimCoordinatorMessage::Trigger(number)) => return node.merge.add_trigger(number),
            None => return,
        };
        for (at, from) in node.inputs.iter().enumerate() {
            if update.inputs.contains(from) {
                node.merge.open_input(at);
            } else if update.unused.contains(from) {
                node.merge.mark_unused(at);
            }
        }
        for output in node
            .outputs
            .iter_mut()
            .filter(|output| update.outputs.contains(&output.to))
        {
            output.open = true;
        }
        node.to_coordinator.extend(
            update
                .inputs
                .into_iter()
                .chain(update.outputs)
                .map(SimWorkerMessage::Opened),
        );
    }

    /// Delivers one frame, if its consumer has opened.
    pub(super) fn deliver_frame(&mut self, at: usize) -> Result<(), String> {
        let Some((edge, frames)) = self.streams.iter_mut().nth(at) else {
            return Ok(());
        };
        let Some(node) = self.workers.get_mut(&edge.1) else {
            return Ok(());
        };
        let input = node.inputs.iter().position(|from| *from == edge.0).unwrap();
        if node.merge.is_undecided(input) {
            return Ok(());
        }
        let Some(piece) = frames.pop_front() else {
            return Ok(());
        };
        let sequence = self.workers[&edge.0]
            .outputs
            .iter()
            .find(|output| output.to == edge.1)
            .unwrap()
            .sent
            - frames.len() as u64;
        let node = self.workers.get_mut(&edge.1).unwrap();
        node.merge
            .push(input, sequence, piece)
            .map_err(|error| format!("{edge:?}: {error}"))
    }
}
