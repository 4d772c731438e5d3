//! What edges do.

use bytes::Bytes;

use super::Shared;
use crate::flow::Piece;
use crate::frame::{Frame, Kind};
use crate::worker::{End, Route};

impl Shared {
    pub(in crate::worker) fn set_route(&self, end: End, at: usize, route: Route) {
        self.lock().routes[usize::from(end == End::Producer)][at] = Some(route);
    }

    /// A numbered frame came.
    pub(in crate::worker) fn push(&self, input: usize, frame: Frame) -> Result<(), String> {
        let mut state = self.lock();
        let piece = match frame.kind {
            Kind::Data => {
                state.unacked[input] += frame.payload.len();
                state.stats.inputs[input].batches += 1;
                state.stats.inputs[input].bytes += frame.payload.len() as u64;
                Piece::Data(frame.payload)
            }
            Kind::Barrier => Piece::Barrier(number(&frame.payload)?),
            Kind::End => Piece::End,
            other => return Err(format!("{other:?} has no place here")),
        };
        state.merge.push(input, frame.sequence, piece).map_err(|error| error.to_string())?;
        self.arrived.notify_one();
        Ok(())
    }

    /// What to acknowledge, and whether that was all.
    pub(in crate::worker) fn processed(&self, input: usize) -> (u64, bool) {
        let state = self.lock();
        (state.merge.processed(input), state.merge.has_ended(input))
    }

    pub(in crate::worker) async fn something_to_acknowledge(&self, input: usize) {
        self.acks[input].notified().await;
    }

    pub(in crate::worker) async fn something_to_send(&self, output: usize) {
        self.sends[output].notified().await;
    }

    /// The next frame that may go.
    pub(in crate::worker) fn pop(&self, output: usize) -> std::io::Result<Option<Frame>> {
        let mut state = self.lock();
        let out = &mut state.outputs[output];
        if let Some(frame) = out.queue.pop_front() {
            out.ended |= frame.kind == Kind::End;
            return Ok(Some(frame));
        }
        let Some(spill) = &mut out.spill else { return Ok(None) };
        let weight = |(kind, bytes): (Kind, usize)| if kind == Kind::Data { bytes } else { 0 };
        let Some(weight) = spill.front().map(weight).filter(|weight| out.flow.admits(*weight)) else { return Ok(None) };
        let Some((kind, payload)) = spill.pop()? else { return Ok(None) };
        out.ended |= kind == Kind::End;
        self.room.notify_all();
        Ok(Some(Frame { kind, sequence: out.flow.send(weight), payload }))
    }

    /// Whether the end has gone to the socket.
    pub(in crate::worker) fn has_sent_end(&self, output: usize) -> bool {
        self.lock().outputs[output].ended
    }

    pub(in crate::worker) fn set_window(&self, output: usize, window: usize) {
        self.lock().outputs[output].flow.set_window(window);
        self.room.notify_all();
    }

    /// Whether the consumer is through with all.
    pub(in crate::worker) fn acknowledged(&self, output: usize, sequence: u64) -> Result<bool, String> {
        let mut state = self.lock();
        let out = &mut state.outputs[output];
        out.flow.acknowledge(sequence).map_err(|error| error.to_string())?;
        self.room.notify_all();
        self.sends[output].notify_one(); // what lies on disk may go now
        Ok(out.ended && out.flow.is_idle())
    }
}

fn number(payload: &Bytes) -> Result<u64, String> {
    payload[..].try_into().map(u64::from_le_bytes).map_err(|_| "a barrier without a number".to_owned())
}
