//! One worker: its streams on a thread of their own, and calls that wait for whoever runs the user's code.
//!
//! ```text
//!  producers ──► edge::consume ─► Merge ─► receive ─► user's code ─► send ─► Outgoing ─► edge::produce ──► consumers
//!                      ▲                                               │ no room, may spill
//!                      └── acks: what receive has gone past            └────► Spill ────────┘
//! ```
//!
//! Memory is bounded: what a consumer has not processed is at most its window on each edge, and what a producer holds is part of
//! that same window.

mod edge;
mod shared;
mod stats;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

use shared::WorkerShared;
pub use stats::{EdgeStats, WorkerStats};

/// How a worker gets a stream to another one. Both ends ask: who punches needs both.
pub trait EdgeConnector: Send + Sync + 'static {
    /// What carries the bytes, already as safe as it is going to be.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// A stream to `peer`, which asks for the other end.
    fn connect(
        &self,
        end: EdgeEnd,
        peer: &str,
    ) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Ends a stream that is through, and waits until the peer has what was written, as far as that can be known: not every
    /// stream goes on by itself once it is dropped.
    fn close(&self, stream: Self::Stream) -> impl Future<Output = io::Result<()>> + Send {
        async {
            drop(stream);
            Ok(())
        }
    }

    /// How the batches of a stream travel. It is asked now and then, also after the stream's end.
    fn path_probe(&self, stream: &Self::Stream, end: EdgeEnd) -> EdgePathProbe {
        let _ = (stream, end);
        Arc::new(|_| EdgePath {
            path: "local",
            relayed: 0,
        })
    }
}

/// How so many bytes of batches have travelled.
pub type EdgePathProbe = Arc<dyn Fn(u64) -> EdgePath + Send + Sync>;

/// How bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgePath {
    /// The path of most of them: `local`, `punch` or `relay`.
    pub path: &'static str,
    /// Bytes that a relay carried, with what encryption adds to them.
    pub relayed: u64,
}

/// Which end of an edge is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeEnd {
    /// Who sends batches.
    Producer,
    /// Who gets them.
    Consumer,
}

/// What a worker is told when it starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerAssignment {
    /// Its name.
    pub name: String,
    /// Which attempt at the job this is.
    pub attempt: u32,
    /// Whom it hears.
    pub inputs: Vec<InputConfig>,
    /// Whom it speaks to.
    pub outputs: Vec<OutputConfig>,
    /// Bytes that may be on their way on each input.
    pub window: usize,
    /// The checkpoint from which it goes on; 0: from the beginning.
    #[serde(default)]
    pub checkpoint: u64,
    /// Where outputs spill to that may, and how many bytes each.
    #[serde(default)]
    pub spill: Option<SpillConfig>,
    /// Seconds in which every peer must be there.
    pub patience: f64,
}

/// One stream that comes in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InputConfig {
    /// Its producer.
    pub from: String,
    /// The last frame that is processed; `NoConnection` when the stream has ended.
    pub processed: Option<u64>,
    /// Not there yet: opens by [`Worker::open_input`], if at all.
    #[serde(default)]
    pub later: bool,
}

/// One stream that goes out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OutputConfig {
    /// Its consumer.
    pub to: String,
    /// The last frame that was sent.
    pub sent: u64,
    /// Whether it spills.
    #[serde(default)]
    pub spill: bool,
    /// Not there yet: opens by [`Worker::open_output`], if at all.
    #[serde(default)]
    pub later: bool,
}

/// A place on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SpillConfig {
    /// It exists.
    pub folder: PathBuf,
    /// Bytes, for each edge.
    pub limit: u64,
}

/// Where a worker stands on its edges, at a barrier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgePositions {
    /// In the order of the inputs: the last frame that is processed, or nothing where the stream has ended.
    pub inputs: Vec<Option<u64>>,
    /// In the order of the outputs: the last frame sent, the barrier itself.
    pub outputs: Vec<u64>,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputEvent {
    /// Process this.
    Batch {
        /// Which of the inputs.
        input: usize,
        /// As the producer made it.
        data: Bytes,
    },
    /// Hand it on ([`Worker::send_barrier`]) and write down what is known.
    Barrier(u64),
    /// All inputs have ended.
    Ended,
}

/// Why a worker cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum WorkerFailure {
    #[error("the stream with `{peer}` is gone: {why}; go on from the last checkpoint")]
    StreamLost { peer: String, why: String },
    #[error("`{peer}` gave up: {why}")]
    PeerFailed { peer: String, why: String },
    #[error("`{peer}` sent what it may not: {why}")]
    ProtocolViolation { peer: String, why: String },
    #[error("{0}")]
    Local(String),
}

/// The longest wait for peers to be told that this worker gives up.
const FAILURE_REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// A worker whose streams are being made, or are there.
pub struct DataflowWorker {
    shared: Arc<WorkerShared>,
}

impl DataflowWorker {
    /// Begins to connect; calls wait for the streams as they need them. `connector` is made on the worker's own runtime.
    ///
    /// # Errors
    /// No thread or no runtime.
    pub fn start<C: EdgeConnector>(
        orders: WorkerAssignment,
        connector: impl FnOnce() -> io::Result<C> + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(WorkerShared::new(orders));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let edges = Arc::clone(&shared);
        let run = move || runtime.block_on(run_edges(edges, connector));
        thread::Builder::new().name("edges".to_owned()).spawn(run)?;
        Ok(Self { shared })
    }

    /// The next batch, fairly from all inputs; waits for it. The one before counts as processed now.
    ///
    /// # Errors
    /// Whatever ended an edge.
    pub fn receive_next(&self) -> Result<InputEvent, WorkerFailure> {
        self.shared.receive_next()
    }

    /// What was received is processed, though no more is asked for yet.
    pub fn finish_batch(&self) {
        self.shared.finish_batch();
    }

    /// The barrier that begins here: for sources between two batches, and for all when no input is left.
    pub fn take_due_barrier(&self) -> Option<u64> {
        self.shared.take_due_barrier()
    }

    /// An input that was to come later is there: its producer is being started. Between two checkpoints only.
    pub fn open_input(&self, input: usize) {
        self.shared.open_input(input);
    }

    /// An input that was to come later never does. Between two checkpoints only.
    pub fn mark_input_unused(&self, input: usize) {
        self.shared.mark_input_unused(input);
    }

    /// An output that was to come later is there: its consumer is, too. Between two checkpoints only.
    pub fn open_output(&self, output: usize) {
        self.shared.open_output(output);
    }

    /// Those of some outputs that may be sent to.
    pub fn open_outputs(&self, outputs: &[usize]) -> Vec<usize> {
        self.shared.open_outputs(outputs)
    }

    /// The job begins a checkpoint.
    pub fn trigger_checkpoint(&self, checkpoint: u64) {
        self.shared.trigger_checkpoint(checkpoint);
    }

    /// To one output; waits for room, or for the disk where the edge spills.
    ///
    /// # Errors
    /// Whatever ended an edge; a batch that is longer than a frame.
    pub fn send_batch(&self, output: usize, batch: Bytes) -> Result<(), WorkerFailure> {
        self.shared.send_batch(output, batch)
    }

    /// Cuts all outputs here. Where the worker stands now belongs in its state.
    ///
    /// # Errors
    /// Whatever ended an edge.
    pub fn send_barrier(&self, checkpoint: u64) -> Result<EdgePositions, WorkerFailure> {
        self.shared.send_barrier(checkpoint)
    }

    /// Ends all outputs that are open, and waits until their consumers have processed all. No other one opens any more.
    ///
    /// # Errors
    /// Whatever ended an edge.
    pub fn finish_outputs(&self) -> Result<(), WorkerFailure> {
        self.shared.finish_outputs()
    }

    /// Tells all peers why this worker cannot go on. They have a second to hear it.
    pub fn fail_with_reason(&self, why: &str) {
        self.shared
            .record_failure(WorkerFailure::Local(why.to_owned()));
        self.shared.wait_until_closed(FAILURE_REPORT_TIMEOUT);
    }

    /// What went over each edge, and how long was waited.
    pub fn stats(&self) -> WorkerStats {
        self.shared.snapshot_stats()
    }
}

impl Drop for DataflowWorker {
    fn drop(&mut self) {
        self.shared.record_failure(WorkerFailure::Local(
            "the worker ended before its streams".to_owned(),
        ));
    }
}

/// All edges, until each is through or one fails, and no other one can come.
async fn run_edges<C: EdgeConnector>(
    shared: Arc<WorkerShared>,
    connector: impl FnOnce() -> io::Result<C>,
) {
    let connector = match connector() {
        Ok(connector) => Arc::new(connector),
        Err(error) => return shared.record_failure(WorkerFailure::Local(error.to_string())),
    };
    let mut edges = JoinSet::new();
    loop {
        for (end, at) in shared.take_unstarted_edges() {
            let (shared, connector) = (Arc::clone(&shared), Arc::clone(&connector));
            match end {
                EdgeEnd::Consumer => edges.spawn(edge::run_consumer(shared, connector, at)),
                EdgeEnd::Producer => edges.spawn(edge::run_producer(shared, connector, at)),
            };
        }
        if edges.is_empty() && !shared.can_open_more() {
            return shared.mark_closed();
        }
        tokio::select! {
            Some(_) = edges.join_next() => {}
            () = shared.wait_for_edges() => {}
        }
    }
}
