//! Calls of the user's thread.

use std::sync::PoisonError;
use std::time::Duration;

use bytes::Bytes;

use super::{EdgesState, OutputState, WaitReason, WorkerShared, wait_for};
use crate::flow::MergeStep;
use crate::frame::{EdgeFrame, FrameKind, MAX_PAYLOAD_BYTES};
use crate::spill::SpillQueue;
use crate::worker::{EdgePositions, InputEvent, WorkerFailure};

impl WorkerShared {
    pub(in crate::worker) fn receive_next(&self) -> Result<InputEvent, WorkerFailure> {
        let mut state = self.lock();
        self.ack_current(&mut state);
        loop {
            state.check_failure()?;
            match state
                .merge
                .next_step()
                .map_err(|error| WorkerFailure::Local(error.to_string()))?
            {
                MergeStep::Batch { input, data } => {
                    state.current_input = Some(input);
                    return Ok(InputEvent::Batch { input, data });
                }
                MergeStep::Barrier(barrier) => {
                    self.ack_all();
                    return Ok(InputEvent::Barrier(barrier));
                }
                MergeStep::Ended => {
                    self.ack_all();
                    return Ok(InputEvent::Ended);
                }
                // Before a wait: a producer may be blocked on acks that were held back, and nothing
                // else would free it.
                MergeStep::Idle => self.ack_all(),
            }
            state = wait_for(&self.input_ready, state, WaitReason::Input);
        }
    }

    /// Sends an ack when a quarter of the window is processed, or no other frame of that input is
    /// queued: rarely, but early enough that a producer never waits without need.
    fn ack_current(&self, state: &mut EdgesState) {
        state.merge.finish_batch();
        let Some(at) = state.current_input.take() else {
            return;
        };
        if state.unacked_bytes[at] >= self.assignment.window / 4
            || state.merge.queued_frames(at) == 0
        {
            state.unacked_bytes[at] = 0;
            self.ack_ready[at].notify_one();
        }
    }

    pub(in crate::worker) fn finish_batch(&self) {
        let mut state = self.lock();
        self.ack_current(&mut state);
    }

    fn ack_all(&self) {
        for ack in &self.ack_ready {
            ack.notify_one();
        }
    }

    pub(in crate::worker) fn take_due_barrier(&self) -> Option<u64> {
        self.lock().merge.take_due_barrier()
    }

    pub(in crate::worker) fn trigger_checkpoint(&self, checkpoint: u64) {
        self.lock().merge.add_trigger(checkpoint);
        self.input_ready.notify_one(); // a reader that waits for undecided inputs starts it
    }

    pub(in crate::worker) fn send_batch(
        &self,
        output: usize,
        batch: Bytes,
    ) -> Result<(), WorkerFailure> {
        if batch.len() > MAX_PAYLOAD_BYTES {
            let message = format!(
                "batch of {} bytes exceeds {MAX_PAYLOAD_BYTES}: make smaller batches",
                batch.len()
            );
            return Err(WorkerFailure::Local(message));
        }
        let mut state = self.lock();
        if !state.outputs[output].is_open {
            return Err(WorkerFailure::Local(format!(
                "`{}` has not been started",
                self.assignment.outputs[output].to
            )));
        }
        // Counted before the wait for room: the statistics show a blocked batch too.
        state.stats.outputs[output].batches += 1;
        state.stats.outputs[output].bytes += batch.len() as u64;
        loop {
            state.check_failure()?;
            if self.try_enqueue(&mut state, output, FrameKind::Data, &batch)? {
                self.send_ready[output].notify_one();
                return Ok(());
            }
            state = wait_for(&self.room_ready, state, WaitReason::Room);
        }
    }

    /// True when a batch of `bytes` can be sent to all of `outputs` without a wait. Then this stays
    /// true until another batch is sent to one of them.
    pub(in crate::worker) fn has_room(&self, outputs: &[usize], bytes: usize) -> bool {
        let state = self.lock();
        outputs.iter().all(|output| {
            let out = &state.outputs[*output];
            match &out.spill {
                Some(spill) if !spill.is_empty() => spill.has_room_for(bytes),
                _ => out.window.has_room_for(bytes),
            }
        })
    }

    /// Queues a frame for the socket, or on disk behind the frames that are there. Returns false
    /// when neither has room.
    fn try_enqueue(
        &self,
        state: &mut EdgesState,
        output: usize,
        kind: FrameKind,
        payload: &Bytes,
    ) -> Result<bool, WorkerFailure> {
        let weight = if kind == FrameKind::Data {
            payload.len()
        } else {
            0
        };
        let out = &mut state.outputs[output];
        let is_spilling = out.spill.as_ref().is_some_and(|spill| !spill.is_empty());
        // While frames are on disk, the window is not used directly: the order of the edge would
        // change.
        if !is_spilling && out.window.has_room_for(weight) {
            let sequence = out.window.record_send(weight);
            out.send_queue.push_back(EdgeFrame {
                kind,
                sequence,
                payload: payload.clone(),
            });
            return Ok(true);
        }
        let spill_failed = |error: std::io::Error| {
            WorkerFailure::Local(format!("spilling to disk failed: {error}"))
        };
        let Some(spill) = self.spill_queue(out, output).map_err(spill_failed)? else {
            return Ok(false);
        };
        // Frames without weight always follow the frames on disk, whatever the limit: they are a
        // few bytes and must not block.
        if weight > 0 && !spill.has_room_for(weight) {
            return Ok(false);
        }
        spill.push(kind, payload).map_err(spill_failed)?;
        state.stats.outputs[output].spilled += weight as u64;
        Ok(true)
    }

    fn spill_queue<'a>(
        &self,
        out: &'a mut OutputState,
        output: usize,
    ) -> std::io::Result<Option<&'a mut SpillQueue>> {
        // Created on first use: most edges that may spill never do.
        if out.spill.is_none()
            && self.assignment.outputs[output].spill
            && let Some(config) = &self.assignment.spill
        {
            out.spill = Some(SpillQueue::new(&config.folder, config.limit)?);
        }
        Ok(out.spill.as_mut())
    }

    pub(in crate::worker) fn send_barrier(
        &self,
        checkpoint: u64,
    ) -> Result<EdgePositions, WorkerFailure> {
        let payload = Bytes::copy_from_slice(&checkpoint.to_le_bytes());
        let mut state = self.lock();
        state.check_failure()?;
        self.enqueue_all(&mut state, FrameKind::Barrier, &payload)?;
        let outputs = state
            .outputs
            .iter()
            .map(OutputState::last_sequence)
            .collect();
        Ok(EdgePositions {
            inputs: state.merge.positions(),
            outputs,
        })
    }

    /// Queues a frame without weight on all open outputs.
    fn enqueue_all(
        &self,
        state: &mut EdgesState,
        kind: FrameKind,
        payload: &Bytes,
    ) -> Result<(), WorkerFailure> {
        for output in 0..self.send_ready.len() {
            if state.outputs[output].is_open {
                self.try_enqueue(state, output, kind, payload)?;
                self.send_ready[output].notify_one();
            }
        }
        Ok(())
    }

    pub(in crate::worker) fn finish_outputs(&self) -> Result<(), WorkerFailure> {
        let mut state = self.lock();
        self.ack_current(&mut state);
        self.ack_all();
        state.check_failure()?;
        self.enqueue_all(&mut state, FrameKind::End, &Bytes::new())?;
        // Under the same lock as the ends: no output may open after its end was due.
        state.is_finishing = true;
        self.edges_changed.notify_one();
        while !state.is_closed {
            state.check_failure()?;
            state = wait_for(&self.room_ready, state, WaitReason::Room);
        }
        state.check_failure()
    }

    pub(in crate::worker) fn wait_until_closed(&self, time_limit: Duration) {
        let result = self
            .room_ready
            .wait_timeout_while(self.lock(), time_limit, |state| !state.is_closed);
        drop(result.unwrap_or_else(PoisonError::into_inner));
    }
}
