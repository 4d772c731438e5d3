//! A worker: its streams run on their own thread; its calls block the thread of the user's code.
//!
//! ```text
//! producers ──► edge::run_consumer ─► InputMerge ─► receive ─► user's code ─► send ─► SendWindow ─► edge::run_producer ──► consumers
//! ▲                                                       │ no room, may spill
//! └── acks: batches that receive has passed               └────► SpillQueue ────┘
//! ```
//!
//! Memory is bounded: unprocessed batches take at most the window on each edge, and batches held by
//! a producer are part of that same window.

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

/// Provider of streams to other workers. Both ends request a stream, because NAT hole punching
/// needs both.
pub trait EdgeConnector: Send + Sync + 'static {
    /// Byte stream, with the final encryption.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Connects to `peer`, which requests the other end.
    fn connect(
        &self,
        end: EdgeEnd,
        peer: &str,
    ) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Closes a finished stream, and waits until the peer has all bytes, as far as that can be
    /// known: a dropped stream does not always send the rest.
    fn close(&self, stream: Self::Stream) -> impl Future<Output = io::Result<()>> + Send {
        async {
            drop(stream);
            Ok(())
        }
    }

    /// Returns a probe for the path of a stream. The probe may be called at any time, also after
    /// the stream's end.
    fn path_probe(&self, stream: &Self::Stream, end: EdgeEnd) -> EdgePathProbe {
        let _ = (stream, end);
        Arc::new(|_| EdgePath {
            path: "local",
            relayed: 0,
        })
    }
}

/// Maps the bytes of batches so far to the path that they took.
pub type EdgePathProbe = Arc<dyn Fn(u64) -> EdgePath + Send + Sync>;

/// Path of the bytes of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgePath {
    /// Path of most bytes: `local`, `punch` or `relay`.
    pub path: &'static str,
    /// Bytes that a relay carried, including the overhead of encryption.
    pub relayed: u64,
}

/// End of an edge in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeEnd {
    /// Sends batches.
    Producer,
    /// Receives batches.
    Consumer,
}

/// Instructions for a worker at its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerAssignment {
    /// Name of the worker.
    pub name: String,
    /// Attempt at the job.
    pub attempt: u32,
    /// Streams that it reads.
    pub inputs: Vec<InputConfig>,
    /// Streams that it writes.
    pub outputs: Vec<OutputConfig>,
    /// Bytes that may be in flight on each input.
    pub window: usize,
    /// Checkpoint from which it resumes; 0: from the start.
    #[serde(default)]
    pub checkpoint: u64,
    /// Folder and size for outputs that may spill.
    #[serde(default)]
    pub spill: Option<SpillConfig>,
    /// Time for peers to connect, in seconds.
    pub connect_timeout: f64,
}

/// An incoming stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InputConfig {
    /// Name of the producer.
    pub from: String,
    /// Last processed frame; `None` when the stream has ended.
    pub processed: Option<u64>,
    /// Closed at the start: opens by [`DataflowWorker::open_input`], if at all.
    #[serde(default)]
    pub pending: bool,
}

/// An outgoing stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OutputConfig {
    /// Name of the consumer.
    pub to: String,
    /// Last sent frame.
    pub sent: u64,
    /// Batches without room go to disk.
    #[serde(default)]
    pub spill: bool,
    /// Closed at the start: opens by [`DataflowWorker::open_output`], if at all.
    #[serde(default)]
    pub pending: bool,
}

/// Disk space for spilled batches.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SpillConfig {
    /// Existing folder.
    pub folder: PathBuf,
    /// Bytes per edge.
    pub limit: u64,
}

/// Positions of a worker on its edges at a barrier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgePositions {
    /// Last processed frame of each input, in order; `None` when the stream has ended.
    pub inputs: Vec<Option<u64>>,
    /// Last sent frame of each output, in order: the barrier itself.
    pub outputs: Vec<u64>,
}

/// Next event on the inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputEvent {
    /// Process a batch.
    Batch {
        /// Index of the input.
        input: usize,
        /// The batch, as sent by the producer.
        data: Bytes,
    },
    /// Forward the barrier ([`DataflowWorker::send_barrier`]) and save the state.
    Barrier(u64),
    /// All inputs have ended.
    Ended,
}

/// Reasons why a worker cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum WorkerFailure {
    #[error("stream with `{peer}` lost: {why}; resume from the last checkpoint")]
    StreamLost { peer: String, why: String },
    #[error("`{peer}` failed: {why}")]
    PeerFailed { peer: String, why: String },
    #[error("`{peer}` violated the protocol: {why}")]
    ProtocolViolation { peer: String, why: String },
    #[error("{0}")]
    Local(String),
}

/// Time for peers to receive the reason of a failure.
const FAILURE_REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// A worker with its streams, which may still be connecting.
pub struct DataflowWorker {
    shared: Arc<WorkerShared>,
}

impl DataflowWorker {
    /// Starts to connect; calls wait for the streams that they need. `connector` runs on the
    /// worker's own runtime.
    ///
    /// # Errors
    /// When the thread or the runtime cannot be created.
    pub fn start<C: EdgeConnector>(
        assignment: WorkerAssignment,
        connector: impl FnOnce() -> io::Result<C> + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(WorkerShared::new(assignment));
        // A runtime per worker: user code blocks its own thread for long, and the streams must go
        // on meanwhile.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let edges = Arc::clone(&shared);
        let run = move || runtime.block_on(run_edges(edges, connector));
        thread::Builder::new().name("edges".to_owned()).spawn(run)?;
        Ok(Self { shared })
    }

    /// Waits for the next event, fairly over all inputs. The batch before counts as processed.
    ///
    /// # Errors
    /// The failure that ended an edge.
    pub fn receive_next(&self) -> Result<InputEvent, WorkerFailure> {
        self.shared.receive_next()
    }

    /// Counts the received batch as processed, without asking for the next.
    pub fn finish_batch(&self) {
        self.shared.finish_batch();
    }

    /// Returns the barrier that starts here: for sources between two batches, for others when no
    /// input is left.
    pub fn take_due_barrier(&self) -> Option<u64> {
        self.shared.take_due_barrier()
    }

    /// Opens an input: its producer is starting. Only between two checkpoints.
    pub fn open_input(&self, input: usize) {
        self.shared.open_input(input);
    }

    /// Declares that an input never opens. Only between two checkpoints.
    pub fn mark_input_unused(&self, input: usize) {
        self.shared.mark_input_unused(input);
    }

    /// Opens an output: its consumer is starting. Only between two checkpoints.
    pub fn open_output(&self, output: usize) {
        self.shared.open_output(output);
    }

    /// Filters `outputs` to those that are open.
    pub fn open_outputs(&self, outputs: &[usize]) -> Vec<usize> {
        self.shared.open_outputs(outputs)
    }

    /// Announces a checkpoint of the job.
    pub fn trigger_checkpoint(&self, checkpoint: u64) {
        self.shared.trigger_checkpoint(checkpoint);
    }

    /// Sends a batch to one output. Waits for room in the window, or on disk when the edge spills.
    ///
    /// # Errors
    /// The failure that ended an edge; a batch larger than a frame.
    pub fn send_batch(&self, output: usize, batch: Bytes) -> Result<(), WorkerFailure> {
        self.shared.send_batch(output, batch)
    }

    /// Sends a barrier to all outputs. The returned positions belong in the worker's state.
    ///
    /// # Errors
    /// The failure that ended an edge.
    pub fn send_barrier(&self, checkpoint: u64) -> Result<EdgePositions, WorkerFailure> {
        self.shared.send_barrier(checkpoint)
    }

    /// Ends all open outputs, and waits until their consumers have processed everything. No other
    /// output opens any more.
    ///
    /// # Errors
    /// The failure that ended an edge.
    pub fn finish_outputs(&self) -> Result<(), WorkerFailure> {
        self.shared.finish_outputs()
    }

    /// Fails the worker and sends the reason to all peers, for at most a second.
    pub fn fail_with_reason(&self, why: &str) {
        self.shared
            .record_failure(WorkerFailure::Local(why.to_owned()));
        self.shared.wait_until_closed(FAILURE_REPORT_TIMEOUT);
    }

    /// Bytes and batches of each edge, and waiting times.
    pub fn stats(&self) -> WorkerStats {
        self.shared.snapshot_stats()
    }
}

impl Drop for DataflowWorker {
    fn drop(&mut self) {
        // Ends the edge thread; without effect on a worker that has finished, whose edges are
        // closed.
        self.shared.record_failure(WorkerFailure::Local(
            "the worker ended before its streams".to_owned(),
        ));
    }
}

/// Runs all edges until each has ended or one fails, and none can open any more.
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
        // Both conditions: with no edge left, an undecided one may still open between two
        // checkpoints.
        if edges.is_empty() && !shared.can_open_more() {
            return shared.mark_closed();
        }
        tokio::select! {
            Some(_) = edges.join_next() => {}
            () = shared.wait_for_edges() => {}
        }
    }
}
