//! Edges that open while the worker runs.

use std::mem;

use super::WorkerShared;
use crate::worker::EdgeEnd;

impl WorkerShared {
    pub(in crate::worker) fn open_input(&self, input: usize) {
        let mut state = self.lock();
        // Updates repeat the whole state: an input that is open already is no error.
        if state.merge.is_undecided(input) {
            state.merge.open_input(input);
            state.unstarted_edges.push((EdgeEnd::Consumer, input));
            self.edges_changed.notify_one();
        }
    }

    pub(in crate::worker) fn mark_input_unused(&self, input: usize) {
        self.lock().merge.mark_unused(input);
        self.input_ready.notify_one();
        self.edges_changed.notify_one();
    }

    pub(in crate::worker) fn open_output(&self, output: usize) {
        let mut state = self.lock();
        // A finishing worker has sent its ends; an output that opened now would never get one.
        if !state.is_finishing && !state.outputs[output].is_open {
            state.outputs[output].is_open = true;
            state.unstarted_edges.push((EdgeEnd::Producer, output));
            self.edges_changed.notify_one();
        }
    }

    pub(in crate::worker) fn filter_open_outputs(&self, outputs: &[usize]) -> Vec<usize> {
        let state = self.lock();
        outputs
            .iter()
            .copied()
            .filter(|output| state.outputs[*output].is_open)
            .collect()
    }

    /// Takes the edges to start now.
    pub(in crate::worker) fn take_unstarted_edges(&self) -> Vec<(EdgeEnd, usize)> {
        mem::take(&mut self.lock().unstarted_edges)
    }

    pub(in crate::worker) async fn wait_for_edges(&self) {
        self.edges_changed.notified().await;
    }

    /// True when edges may still open.
    pub(in crate::worker) fn can_open_more(&self) -> bool {
        let state = self.lock();
        let has_undecided =
            (0..self.assignment.inputs.len()).any(|input| state.merge.is_undecided(input));
        let grows = !state.is_finishing && state.outputs.iter().any(|out| !out.is_open);
        state.failure.is_none() && (!state.unstarted_edges.is_empty() || has_undecided || grows)
    }
}
