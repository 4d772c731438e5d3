//! State shared by the user's thread and the edges: one lock, taken once per batch by each.

mod edge_calls;
mod pending_edges;
mod user_calls;

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Notify, watch};

use crate::flow::{InputMerge, InputStart, SendWindow};
use crate::frame::EdgeFrame;
use crate::spill::SpillQueue;

use super::open_batches::OpenBatches;
use super::{
    EdgeEnd, EdgePathProbe, EdgeStats, InputConfig, WorkerAssignment, WorkerFailure, WorkerStats,
};

/// Time for an edge to finish the frame that it is writing, once another edge has failed.
const FRAME_WRITE_GRACE: Duration = Duration::from_millis(200);

pub(super) struct WorkerShared {
    pub(super) assignment: WorkerAssignment,
    pub(super) open_batches: OpenBatches,
    state: Mutex<EdgesState>,
    /// An item arrived, or an edge failed.
    input_ready: Condvar,
    /// Bytes were acknowledged, or an edge failed.
    room_ready: Condvar,
    /// Per input: there is something to acknowledge.
    ack_ready: Vec<Notify>,
    /// Per output: there is something to send.
    send_ready: Vec<Notify>,
    /// An edge is to be started, or none will open any more.
    edges_changed: Notify,
    /// Set by the first failure.
    failed_flag: watch::Sender<bool>,
}

struct EdgesState {
    merge: InputMerge<Bytes>,
    outputs: Vec<OutputState>,
    /// Per input: bytes received since the last ack.
    unacked_bytes: Vec<usize>,
    current_input: Option<usize>,
    failure: Option<WorkerFailure>,
    /// Open edges without a task.
    unstarted_edges: Vec<(EdgeEnd, usize)>,
    /// No output opens any more.
    is_finishing: bool,
    is_closed: bool,
    stats: WorkerStats,
    /// Current wait of the user's thread, with its start.
    current_wait: Option<(WaitReason, Instant)>,
    /// Per input and per output, once there is a stream.
    path_probes: [Vec<Option<EdgePathProbe>>; 2],
}

#[derive(Clone, Copy)]
enum WaitReason {
    Input,
    Room,
}

impl WorkerStats {
    fn add_wait(&mut self, wait: WaitReason, since: Instant) {
        let waited = match wait {
            WaitReason::Input => &mut self.waited_for_input,
            WaitReason::Room => &mut self.waited_for_room,
        };
        *waited += since.elapsed().as_secs_f64();
    }
}

struct OutputState {
    window: SendWindow,
    /// Numbered frames that wait for the socket.
    send_queue: VecDeque<EdgeFrame>,
    spill: Option<SpillQueue>,
    /// The consumer has been started.
    is_open: bool,
    end_sent: bool,
}

impl OutputState {
    /// Number of the last frame, including frames on disk.
    fn last_sequence(&self) -> u64 {
        // Spilled frames get the next numbers in order, so the count is enough.
        self.window.next_sequence() - 1 + self.spill.as_ref().map_or(0, |spill| spill.len() as u64)
    }
}

fn input_start(input: &InputConfig) -> InputStart {
    match input.processed {
        _ if input.pending => InputStart::Undecided,
        Some(processed) => InputStart::After(processed),
        None => InputStart::Ended,
    }
}

/// Edges that are open from the start.
fn initial_edges(assignment: &WorkerAssignment) -> Vec<(EdgeEnd, usize)> {
    let inputs = assignment
        .inputs
        .iter()
        .enumerate()
        .filter(|(_, input)| matches!(input_start(input), InputStart::After(_)));
    let outputs = assignment
        .outputs
        .iter()
        .enumerate()
        .filter(|(_, output)| !output.pending);
    inputs
        .map(|(at, _)| (EdgeEnd::Consumer, at))
        .chain(outputs.map(|(at, _)| (EdgeEnd::Producer, at)))
        .collect()
}

impl WorkerShared {
    pub(super) fn new(assignment: WorkerAssignment) -> Self {
        let outputs = assignment.outputs.iter().map(|output| OutputState {
            window: SendWindow::new(output.sent + 1, assignment.window),
            send_queue: VecDeque::new(),
            spill: None,
            is_open: !output.pending,
            end_sent: false,
        });
        let stats = |peer: &String| EdgeStats {
            peer: peer.clone(),
            ..EdgeStats::default()
        };
        let stats = WorkerStats {
            inputs: assignment
                .inputs
                .iter()
                .map(|input| stats(&input.from))
                .collect(),
            outputs: assignment
                .outputs
                .iter()
                .map(|output| stats(&output.to))
                .collect(),
            ..WorkerStats::default()
        };
        let state = EdgesState {
            merge: InputMerge::new(
                assignment.inputs.iter().map(input_start),
                assignment.checkpoint,
            ),
            outputs: outputs.collect(),
            unacked_bytes: vec![0; assignment.inputs.len()],
            current_input: None,
            failure: None,
            unstarted_edges: initial_edges(&assignment),
            is_finishing: false,
            is_closed: false,
            current_wait: None,
            path_probes: [
                vec![None; assignment.inputs.len()],
                vec![None; assignment.outputs.len()],
            ],
            stats,
        };
        Self {
            state: Mutex::new(state),
            input_ready: Condvar::new(),
            room_ready: Condvar::new(),
            ack_ready: assignment.inputs.iter().map(|_| Notify::new()).collect(),
            send_ready: assignment.outputs.iter().map(|_| Notify::new()).collect(),
            edges_changed: Notify::new(),
            failed_flag: watch::Sender::new(false),
            open_batches: OpenBatches::default(),
            assignment,
        }
    }

    fn lock(&self) -> MutexGuard<'_, EdgesState> {
        // Poisoning is ignored: after a panic of one thread, the edges still have to report the
        // failure.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn snapshot_stats(&self) -> WorkerStats {
        let state = self.lock();
        let mut stats = state.stats.clone();
        if let Some((wait, since)) = state.current_wait {
            stats.add_wait(wait, since);
        }
        let edges = stats.inputs.iter_mut().chain(&mut stats.outputs);
        for (edge, route) in edges.zip(state.path_probes.iter().flatten()) {
            let Some(travelled) = route.as_ref().map(|route| route(edge.bytes)) else {
                continue;
            };
            (edge.path, edge.relayed) = (travelled.path, travelled.relayed);
        }
        stats
    }

    /// Records a failure and wakes every waiting thread and task. The first failure is kept.
    pub(super) fn record_failure(&self, failure: WorkerFailure) {
        let mut state = self.lock();
        // A worker that has finished cannot fail afterwards: dropping it calls this too.
        if !state.is_closed {
            state.failure.get_or_insert(failure);
        }
        self.failed_flag.send_replace(true);
        self.edges_changed.notify_one();
        self.input_ready.notify_all();
        self.room_ready.notify_all();
        for notify in self.ack_ready.iter().chain(&self.send_ready) {
            notify.notify_one();
        }
    }

    pub(super) fn mark_closed(&self) {
        self.lock().is_closed = true;
        self.input_ready.notify_all();
        self.room_ready.notify_all();
    }

    /// Waits for a failure, then for [`FRAME_WRITE_GRACE`], and returns the reason.
    pub(super) async fn wait_for_failure(&self) -> String {
        let _ = self
            .failed_flag
            .subscribe()
            .wait_for(|failed| *failed)
            .await;
        // A frame cut in the middle would make the peer report malformed bytes instead of the
        // reason.
        tokio::time::sleep(FRAME_WRITE_GRACE).await;
        self.current_failure()
            .map_or_else(String::new, |failure| failure.to_string())
    }

    pub(super) fn current_failure(&self) -> Option<WorkerFailure> {
        self.lock().failure.clone()
    }
}

impl EdgesState {
    fn check_failure(&self) -> Result<(), WorkerFailure> {
        self.failure.clone().map_or(Ok(()), Err)
    }
}

/// Waits on a condition. Statistics read meanwhile include the wait.
fn wait_for<'a>(
    condition: &Condvar,
    mut state: MutexGuard<'a, EdgesState>,
    wait: WaitReason,
) -> MutexGuard<'a, EdgesState> {
    let since = Instant::now();
    state.current_wait = Some((wait, since));
    state = condition
        .wait(state)
        .unwrap_or_else(PoisonError::into_inner);
    state.current_wait = None;
    state.stats.add_wait(wait, since);
    state
}
