//! What the user's thread and the edges share: one lock, taken once a batch by each.

mod edges;
mod later;
mod user;

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Notify, watch};

use crate::flow::{Merge, Outgoing, Start};
use crate::frame::Frame;
use crate::spill::Spill;

use super::{EdgeStats, End, Failure, Input, Orders, Route, Stats};

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
