//! Calls of the edges.

use bytes::Bytes;

use super::WorkerShared;
use crate::flow::StreamItem;
use crate::frame::{EdgeFrame, FrameKind};
use crate::worker::{EdgeEnd, EdgePathProbe};

impl WorkerShared {
    pub(in crate::worker) fn set_path_probe(&self, end: EdgeEnd, at: usize, route: EdgePathProbe) {
        self.lock().path_probes[usize::from(end == EdgeEnd::Producer)][at] = Some(route);
    }

    /// Queues a numbered frame.
    pub(in crate::worker) fn receive_frame(
        &self,
        input: usize,
        frame: EdgeFrame,
    ) -> Result<(), String> {
        let mut state = self.lock();
        let piece = match frame.kind {
            FrameKind::Data => {
                state.unacked_bytes[input] += frame.payload.len();
                state.stats.inputs[input].batches += 1;
                state.stats.inputs[input].bytes += frame.payload.len() as u64;
                StreamItem::Batch(frame.payload)
            }
            FrameKind::Barrier => StreamItem::Barrier(barrier_number(&frame.payload)?),
            FrameKind::End => StreamItem::End,
            other => return Err(format!("unexpected frame {other:?}")),
        };
        state
            .merge
            .push(input, frame.sequence, piece)
            .map_err(|error| error.to_string())?;
        self.input_ready.notify_one();
        Ok(())
    }

    /// Sequence number to acknowledge, and true when it is the last.
    pub(in crate::worker) fn ack_position(&self, input: usize) -> (u64, bool) {
        let state = self.lock();
        (
            state.merge.processed_sequence(input),
            state.merge.has_ended(input),
        )
    }

    pub(in crate::worker) async fn wait_for_ack(&self, input: usize) {
        self.ack_ready[input].notified().await;
    }

    pub(in crate::worker) async fn wait_for_frame(&self, output: usize) {
        self.send_ready[output].notified().await;
    }

    /// Takes the next frame that may be sent.
    pub(in crate::worker) fn next_frame(
        &self,
        output: usize,
    ) -> std::io::Result<Option<EdgeFrame>> {
        let mut state = self.lock();
        let out = &mut state.outputs[output];
        if let Some(frame) = out.send_queue.pop_front() {
            // The queue holds only frames that the window has admitted.
            out.end_sent |= frame.kind == FrameKind::End;
            return Ok(Some(frame));
        }
        let Some(spill) = &mut out.spill else {
            return Ok(None);
        };
        let weight =
            |(kind, bytes): (FrameKind, usize)| if kind == FrameKind::Data { bytes } else { 0 };
        let Some(weight) = spill
            .peek_front()
            .map(weight)
            .filter(|weight| out.window.has_room_for(*weight))
        else {
            return Ok(None);
        };
        let Some((kind, payload)) = spill.pop()? else {
            return Ok(None);
        };
        out.end_sent |= kind == FrameKind::End;
        // Taking a frame from disk makes room there, for which the user's thread may wait.
        self.room_ready.notify_all();
        Ok(Some(EdgeFrame {
            kind,
            sequence: out.window.record_send(weight),
            payload,
        }))
    }

    /// True when the end has been taken for the socket.
    pub(in crate::worker) fn has_sent_end(&self, output: usize) -> bool {
        self.lock().outputs[output].end_sent
    }

    pub(in crate::worker) fn set_send_window(&self, output: usize, window: usize) {
        self.lock().outputs[output].window.set_window(window);
        self.room_ready.notify_all();
    }

    /// Handles an ack. Returns true when the consumer has processed everything.
    pub(in crate::worker) fn handle_ack(
        &self,
        output: usize,
        sequence: u64,
    ) -> Result<bool, String> {
        let mut state = self.lock();
        let out = &mut state.outputs[output];
        out.window
            .acknowledge(sequence)
            .map_err(|error| error.to_string())?;
        self.room_ready.notify_all();
        self.send_ready[output].notify_one(); // frames on disk may be sent now
        Ok(out.end_sent && out.window.is_idle())
    }
}

fn barrier_number(payload: &Bytes) -> Result<u64, String> {
    payload[..]
        .try_into()
        .map(u64::from_le_bytes)
        .map_err(|_| "barrier without a checkpoint number".to_owned())
}
