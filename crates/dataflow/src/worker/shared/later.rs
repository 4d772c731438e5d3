//! Edges that were not there at the beginning.

use std::mem;

use super::Shared;
use crate::worker::End;

impl Shared {
    pub(in crate::worker) fn open_input(&self, input: usize) {
        let mut state = self.lock();
        if state.merge.is_later(input) {
            state.merge.open(input);
            state.opened.push((End::Consumer, input));
            self.edges.notify_one();
        }
    }

    pub(in crate::worker) fn never(&self, input: usize) {
        self.lock().merge.never(input);
        self.arrived.notify_one();
        self.edges.notify_one();
    }

    pub(in crate::worker) fn open_output(&self, output: usize) {
        let mut state = self.lock();
        if !state.finishing && !state.outputs[output].open {
            state.outputs[output].open = true;
            state.opened.push((End::Producer, output));
            self.edges.notify_one();
        }
    }

    pub(in crate::worker) fn open_of(&self, outputs: &[usize]) -> Vec<usize> {
        let state = self.lock();
        outputs.iter().copied().filter(|output| state.outputs[*output].open).collect()
    }

    /// Edges that are to be made now.
    pub(in crate::worker) fn opened(&self) -> Vec<(End, usize)> {
        mem::take(&mut self.lock().opened)
    }

    pub(in crate::worker) async fn something_opened(&self) {
        self.edges.notified().await;
    }

    /// Whether there may be edges that nobody knows of yet.
    pub(in crate::worker) fn may_open_more(&self) -> bool {
        let state = self.lock();
        let later = (0..self.orders.inputs.len()).any(|input| state.merge.is_later(input));
        let grows = !state.finishing && state.outputs.iter().any(|out| !out.open);
        state.failure.is_none() && (!state.opened.is_empty() || later || grows)
    }
}
