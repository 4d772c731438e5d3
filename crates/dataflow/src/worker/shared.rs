//! What the user's thread and the edges share: one lock, taken once a batch by each.

mod later;

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Notify, watch};

use crate::flow::{Merge, Next, Outgoing, Piece, Start};
use crate::frame::{Frame, Kind, LONGEST};
use crate::spill::Spill;

use super::{EdgeStats, End, Failure, Input, Orders, Positions, Received, Route, Stats};

/// How long an edge may go on with the frame that it is writing, once another one has failed.
const HALF_A_FRAME: Duration = Duration::from_millis(200);

pub(super) struct Shared {
    pub(super) orders: Orders,
    state: Mutex<State>,
    /// Something came, or an edge failed.
    arrived: Condvar,
    /// Something was acknowledged, or an edge failed.
    room: Condvar,
    /// For each input: there is something to acknowledge.
    acks: Vec<Notify>,
    /// For each output: there is something to send.
    sends: Vec<Notify>,
    /// An edge is to be made, or none will be any more.
    edges: Notify,
    /// Somebody failed.
    failed: watch::Sender<bool>,
}

struct State {
    merge: Merge<Bytes>,
    outputs: Vec<Out>,
    /// For each input: bytes that came since the reader's last word to the edge.
    unacked: Vec<usize>,
    reading: Option<usize>,
    failure: Option<Failure>,
    /// Edges that nobody has begun to make.
    opened: Vec<(End, usize)>,
    /// No output opens any more.
    finishing: bool,
    closed: bool,
    stats: Stats,
    /// What the user's thread waits for now, and since when.
    waits: Option<(Wait, Instant)>,
    /// Of the inputs and of the outputs, once there is a stream.
    routes: [Vec<Option<Route>>; 2],
}

#[derive(Clone, Copy)]
enum Wait {
    Input,
    Room,
}

impl Stats {
    fn waited(&mut self, wait: Wait, since: Instant) {
        let waited = match wait {
            Wait::Input => &mut self.waited_for_input,
            Wait::Room => &mut self.waited_for_room,
        };
        *waited += since.elapsed().as_secs_f64();
    }
}

struct Out {
    flow: Outgoing,
    /// Has a number, waits for the socket.
    queue: VecDeque<Frame>,
    spill: Option<Spill>,
    /// Its consumer is there.
    open: bool,
    ended: bool,
}

impl Out {
    /// The last frame that was sent, be it to disk.
    fn position(&self) -> u64 {
        self.flow.next() - 1 + self.spill.as_ref().map_or(0, |spill| spill.len() as u64)
    }
}

fn start(input: &Input) -> Start {
    match input.processed {
        _ if input.later => Start::Later,
        Some(processed) => Start::After(processed),
        None => Start::Ended,
    }
}

/// Those that are there from the beginning.
fn first(orders: &Orders) -> Vec<(End, usize)> {
    let inputs = orders.inputs.iter().enumerate().filter(|(_, input)| matches!(start(input), Start::After(_)));
    let outputs = orders.outputs.iter().enumerate().filter(|(_, output)| !output.later);
    inputs.map(|(at, _)| (End::Consumer, at)).chain(outputs.map(|(at, _)| (End::Producer, at))).collect()
}

impl Shared {
    pub(super) fn new(orders: Orders) -> Self {
        let outputs = orders.outputs.iter().map(|output| Out {
            flow: Outgoing::new(output.sent + 1, orders.window),
            queue: VecDeque::new(),
            spill: None,
            open: !output.later,
            ended: false,
        });
        let stats = |peer: &String| EdgeStats { peer: peer.clone(), ..EdgeStats::default() };
        let stats = Stats {
            inputs: orders.inputs.iter().map(|input| stats(&input.from)).collect(),
            outputs: orders.outputs.iter().map(|output| stats(&output.to)).collect(),
            ..Stats::default()
        };
        let state = State {
            merge: Merge::new(orders.inputs.iter().map(start), orders.checkpoint),
            outputs: outputs.collect(),
            unacked: vec![0; orders.inputs.len()],
            reading: None,
            failure: None,
            opened: first(&orders),
            finishing: false,
            closed: false,
            waits: None,
            routes: [vec![None; orders.inputs.len()], vec![None; orders.outputs.len()]],
            stats,
        };
        Self {
            state: Mutex::new(state),
            arrived: Condvar::new(),
            room: Condvar::new(),
            acks: orders.inputs.iter().map(|_| Notify::new()).collect(),
            sends: orders.outputs.iter().map(|_| Notify::new()).collect(),
            edges: Notify::new(),
            failed: watch::Sender::new(false),
            orders,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // What the user's thread does.

    pub(super) fn receive(&self) -> Result<Received, Failure> {
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

    pub(super) fn finish_reading(&self) {
        let mut state = self.lock();
        self.tell_processed(&mut state);
    }

    fn tell_all(&self) {
        for ack in &self.acks {
            ack.notify_one();
        }
    }

    pub(super) fn due(&self) -> Option<u64> {
        self.lock().merge.due()
    }

    pub(super) fn trigger(&self, checkpoint: u64) {
        self.lock().merge.trigger(checkpoint);
        self.arrived.notify_one(); // it may begin where a reader waits for inputs that are not open yet
    }

    pub(super) fn send(&self, output: usize, batch: Bytes) -> Result<(), Failure> {
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

    pub(super) fn barrier(&self, checkpoint: u64) -> Result<Positions, Failure> {
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

    pub(super) fn finish(&self) -> Result<(), Failure> {
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

    pub(super) fn wait_until_closed(&self, patience: Duration) {
        let open = self.room.wait_timeout_while(self.lock(), patience, |state| !state.closed);
        drop(open.unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn stats(&self) -> Stats {
        let state = self.lock();
        let mut stats = state.stats.clone();
        if let Some((wait, since)) = state.waits {
            stats.waited(wait, since);
        }
        let edges = stats.inputs.iter_mut().chain(&mut stats.outputs);
        for (edge, route) in edges.zip(state.routes.iter().flatten()) {
            let Some(travelled) = route.as_ref().map(|route| route(edge.bytes)) else { continue };
            (edge.path, edge.relayed) = (travelled.path, travelled.relayed);
        }
        stats
    }

    // What edges do.

    pub(super) fn set_route(&self, end: End, at: usize, route: Route) {
        self.lock().routes[usize::from(end == End::Producer)][at] = Some(route);
    }

    /// The first failure is the one that is told. Everybody who waits wakes up.
    pub(super) fn give_up(&self, failure: Failure) {
        let mut state = self.lock();
        if !state.closed {
            state.failure.get_or_insert(failure);
        }
        self.failed.send_replace(true);
        self.edges.notify_one();
        self.arrived.notify_all();
        self.room.notify_all();
        for notify in self.acks.iter().chain(&self.sends) {
            notify.notify_one();
        }
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
        self.room.notify_all();
    }

    /// Until some while after a failure. Why.
    pub(super) async fn failed(&self) -> String {
        let _ = self.failed.subscribe().wait_for(|failed| *failed).await;
        tokio::time::sleep(HALF_A_FRAME).await;
        self.failure().map_or_else(String::new, |failure| failure.to_string())
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        self.lock().failure.clone()
    }

    /// A numbered frame came.
    pub(super) fn push(&self, input: usize, frame: Frame) -> Result<(), String> {
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
    pub(super) fn processed(&self, input: usize) -> (u64, bool) {
        let state = self.lock();
        (state.merge.processed(input), state.merge.has_ended(input))
    }

    pub(super) async fn something_to_acknowledge(&self, input: usize) {
        self.acks[input].notified().await;
    }

    pub(super) async fn something_to_send(&self, output: usize) {
        self.sends[output].notified().await;
    }

    /// The next frame that may go.
    pub(super) fn pop(&self, output: usize) -> std::io::Result<Option<Frame>> {
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
    pub(super) fn has_sent_end(&self, output: usize) -> bool {
        self.lock().outputs[output].ended
    }

    pub(super) fn set_window(&self, output: usize, window: usize) {
        self.lock().outputs[output].flow.set_window(window);
        self.room.notify_all();
    }

    /// Whether the consumer is through with all.
    pub(super) fn acknowledged(&self, output: usize, sequence: u64) -> Result<bool, String> {
        let mut state = self.lock();
        let out = &mut state.outputs[output];
        out.flow.acknowledge(sequence).map_err(|error| error.to_string())?;
        self.room.notify_all();
        self.sends[output].notify_one(); // what lies on disk may go now
        Ok(out.ended && out.flow.is_idle())
    }
}

impl State {
    fn sound(&self) -> Result<(), Failure> {
        self.failure.clone().map_or(Ok(()), Err)
    }
}

/// Until there is news; stats that are asked for meanwhile have the wait in them.
fn wait<'a>(news: &Condvar, mut state: MutexGuard<'a, State>, wait: Wait) -> MutexGuard<'a, State> {
    let since = Instant::now();
    state.waits = Some((wait, since));
    state = news.wait(state).unwrap_or_else(PoisonError::into_inner);
    state.waits = None;
    state.stats.waited(wait, since);
    state
}

fn number(payload: &Bytes) -> Result<u64, String> {
    payload[..].try_into().map(u64::from_le_bytes).map_err(|_| "a barrier without a number".to_owned())
}
