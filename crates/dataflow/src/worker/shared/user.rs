//! What the user's thread does.

use std::sync::PoisonError;
use std::time::Duration;

use bytes::Bytes;

use super::{Out, Shared, State, Wait, wait};
use crate::flow::Next;
use crate::frame::{Frame, Kind, LONGEST};
use crate::spill::Spill;
use crate::worker::{Failure, Positions, Received};

impl Shared {
    pub(in crate::worker) fn receive(&self) -> Result<Received, Failure> {
        let mut state = self.lock();
        self.tell_processed(&mut state);
        loop {
            state.sound()?;
            match state.merge.step().map_err(|error| Failure::Here(error.to_string()))? {
                Next::Data { input, data } => {
                    state.reading = Some(input);
                    return Ok(Received::Batch { input, data });
                }
                Next::Barrier(barrier) => {
                    self.tell_all();
                    return Ok(Received::Barrier(barrier));
                }
                Next::Ended => {
                    self.tell_all();
                    return Ok(Received::Ended);
                }
                Next::Wait => self.tell_all(),
            }
            state = wait(&self.arrived, state, Wait::Input);
        }
    }

    /// An ack goes when a quarter of the window is processed, or nothing else of that input is here: seldom, but never so late
    /// that a producer waits for it without need.
    fn tell_processed(&self, state: &mut State) {
        state.merge.finish_reading();
        let Some(at) = state.reading.take() else { return };
        if state.unacked[at] >= self.orders.window / 4 || state.merge.queued(at) == 0 {
            state.unacked[at] = 0;
            self.acks[at].notify_one();
        }
    }

    pub(in crate::worker) fn finish_reading(&self) {
        let mut state = self.lock();
        self.tell_processed(&mut state);
    }

    fn tell_all(&self) {
        for ack in &self.acks {
            ack.notify_one();
        }
    }

    pub(in crate::worker) fn due(&self) -> Option<u64> {
        self.lock().merge.due()
    }

    pub(in crate::worker) fn trigger(&self, checkpoint: u64) {
        self.lock().merge.trigger(checkpoint);
        self.arrived.notify_one(); // it may begin where a reader waits for inputs that are not open yet
    }

    pub(in crate::worker) fn send(&self, output: usize, batch: Bytes) -> Result<(), Failure> {
        if batch.len() > LONGEST {
            let told = format!("a batch of {} bytes is longer than {LONGEST}: make smaller ones", batch.len());
            return Err(Failure::Here(told));
        }
        let mut state = self.lock();
        if !state.outputs[output].open {
            return Err(Failure::Here(format!("`{}` has not been started", self.orders.outputs[output].to)));
        }
        state.stats.outputs[output].batches += 1;
        state.stats.outputs[output].bytes += batch.len() as u64;
        loop {
            state.sound()?;
            if self.offer(&mut state, output, Kind::Data, &batch)? {
                self.sends[output].notify_one();
                return Ok(());
            }
            state = wait(&self.room, state, Wait::Room);
        }
    }

    /// Whether it went: to the socket, or to disk behind what is already there.
    fn offer(&self, state: &mut State, output: usize, kind: Kind, payload: &Bytes) -> Result<bool, Failure> {
        let weight = if kind == Kind::Data { payload.len() } else { 0 };
        let out = &mut state.outputs[output];
        let spills = out.spill.as_ref().is_some_and(|spill| !spill.is_empty());
        if !spills && out.flow.admits(weight) {
            let sequence = out.flow.send(weight);
            out.queue.push_back(Frame { kind, sequence, payload: payload.clone() });
            return Ok(true);
        }
        let here = |error: std::io::Error| Failure::Here(format!("spilling to disk failed: {error}"));
        let Some(spill) = self.spill(out, output).map_err(here)? else { return Ok(false) };
        // What has no weight follows what is on disk, whatever the bound says: it is a few bytes.
        if weight > 0 && !spill.admits(weight) {
            return Ok(false);
        }
        spill.push(kind, payload).map_err(here)?;
        state.stats.outputs[output].spilled += weight as u64;
        Ok(true)
    }

    fn spill<'a>(&self, out: &'a mut Out, output: usize) -> std::io::Result<Option<&'a mut Spill>> {
        if out.spill.is_none()
            && self.orders.outputs[output].spill
            && let Some(place) = &self.orders.spill
        {
            out.spill = Some(Spill::new(&place.folder, place.limit)?);
        }
        Ok(out.spill.as_mut())
    }

    pub(in crate::worker) fn barrier(&self, checkpoint: u64) -> Result<Positions, Failure> {
        let payload = Bytes::copy_from_slice(&checkpoint.to_le_bytes());
        let mut state = self.lock();
        state.sound()?;
        self.offer_all(&mut state, Kind::Barrier, &payload)?;
        let outputs = state.outputs.iter().map(Out::position).collect();
        Ok(Positions { inputs: state.merge.positions(), outputs })
    }

    /// What has no weight, to all outputs that are open.
    fn offer_all(&self, state: &mut State, kind: Kind, payload: &Bytes) -> Result<(), Failure> {
        for output in 0..self.sends.len() {
            if state.outputs[output].open {
                self.offer(state, output, kind, payload)?;
                self.sends[output].notify_one();
            }
        }
        Ok(())
    }

    pub(in crate::worker) fn finish(&self) -> Result<(), Failure> {
        let mut state = self.lock();
        self.tell_processed(&mut state);
        self.tell_all();
        state.sound()?;
        self.offer_all(&mut state, Kind::End, &Bytes::new())?;
        state.finishing = true;
        self.edges.notify_one();
        while !state.closed {
            state.sound()?;
            state = wait(&self.room, state, Wait::Room);
        }
        state.sound()
    }

    pub(in crate::worker) fn wait_until_closed(&self, patience: Duration) {
        let open = self.room.wait_timeout_while(self.lock(), patience, |state| !state.closed);
        drop(open.unwrap_or_else(PoisonError::into_inner));
    }
}
