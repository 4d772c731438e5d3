//! A worker. Its streams run on a thread of their own; its methods block the user's thread.
//!
//! ```text
//! producers ──► edge::run_consumer ─► InputMerge ─► receive ─► user's code ─► send ─► SendWindow ─► edge::run_producer ──► consumers
//! ▲                                                       │ window full: may spill
//! └── acks: batches that receive has passed               └────► SpillQueue ────┘
//! ```
//!
//! Memory is bounded. Unprocessed batches on an edge take at most the window, which includes the
//! batches that the producer still holds.

mod batch_group;
mod edge;
mod item_batches;
mod open_batches;
mod shared;
mod stats;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

pub use item_batches::ItemBatches;
pub use open_batches::OutputGroup;
use shared::WorkerShared;
pub use stats::{EdgeStats, WorkerStats};

/// Provider of streams to other workers. Both ends request a stream, because NAT hole punching
/// needs both.
pub trait EdgeConnector: Send + Sync + 'static {
    /// Byte stream, already encrypted if the edge needs encryption.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Connects to `peer`, which requests the other end.
    fn connect(
        &self,
        end: EdgeEnd,
        peer: &str,
    ) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Closes a finished stream and waits until the peer has all bytes, if the transport can detect
    /// this. Dropping alone does not always send the rest.
    fn close(&self, stream: Self::Stream) -> impl Future<Output = io::Result<()>> + Send {
        async {
            drop(stream);
            Ok(())
        }
    }

    /// Returns a probe for the path of a stream. Callers may use it at any time, even after the
    /// stream's end.
    fn path_probe(&self, stream: &Self::Stream, end: EdgeEnd) -> EdgePathProbe {
        let _ = (stream, end);
        Arc::new(|_| EdgePath {
            path: "local",
            relayed: 0,
        })
    }
}

/// Function from the number of batch bytes so far to the path that they took.
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

/// Configuration that a worker gets at its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerAssignment {
    /// Name of the worker.
    pub name: String,
    /// Number of the attempt: one run of the job's workers between two deaths.
    pub attempt: u32,
    /// Streams that it reads.
    pub inputs: Vec<InputConfig>,
    /// Streams that it writes.
    pub outputs: Vec<OutputConfig>,
    /// Maximum of unprocessed bytes on each input.
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
    /// True if the stream starts closed. [`DataflowWorker::open_input`] may open it later.
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
    /// True if batches beyond the window go to disk.
    #[serde(default)]
    pub spill: bool,
    /// True if the stream starts closed. [`DataflowWorker::open_output`] may open it later.
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
#[allow(missing_docs, reason = "the error text describes each")]
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
        // A runtime per worker: user code may block its thread for long, while the streams must
        // continue.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let edges = Arc::clone(&shared);
        let run = move || runtime.block_on(run_edges(edges, connector));
        thread::Builder::new().name("edges".to_owned()).spawn(run)?;
        Ok(Self { shared })
    }

    /// Waits for the next event, fairly among all inputs. The previous batch counts as processed.
    ///
    /// # Errors
    /// The failure that ended an edge.
    pub fn receive_next(&self) -> Result<InputEvent, WorkerFailure> {
        self.shared.receive_next()
    }

    /// Counts the received batch as processed, without waiting for the next one.
    pub fn finish_batch(&self) {
        self.shared.finish_batch();
    }

    /// Returns the checkpoint whose barrier this worker must start, if one is due. A source starts
    /// it between two batches; another worker only while no input is open.
    pub fn take_due_barrier(&self) -> Option<u64> {
        self.shared.take_due_barrier()
    }

    /// Opens an input whose producer is starting. Allowed only between two checkpoints (decision
    /// 44).
    pub fn open_input(&self, input: usize) {
        self.shared.open_input(input);
    }

    /// Declares that an input never opens. Allowed only between two checkpoints.
    pub fn mark_input_unused(&self, input: usize) {
        self.shared.mark_input_unused(input);
    }

    /// Opens an output whose consumer is starting. Allowed only between two checkpoints.
    pub fn open_output(&self, output: usize) {
        self.shared.open_output(output);
    }

    /// Returns those of `outputs` that are open.
    pub fn filter_open_outputs(&self, outputs: &[usize]) -> Vec<usize> {
        self.shared.filter_open_outputs(outputs)
    }

    /// Makes the barrier of this checkpoint due, see [`DataflowWorker::take_due_barrier`].
    pub fn trigger_checkpoint(&self, checkpoint: u64) {
        self.shared.trigger_checkpoint(checkpoint);
    }

    /// Sends a batch to one output. Waits while the window is full; an edge that spills waits only
    /// at its disk limit.
    ///
    /// # Errors
    /// The failure that ended an edge; a batch larger than a frame.
    pub fn send_batch(&self, output: usize, batch: Bytes) -> Result<(), WorkerFailure> {
        self.shared.send_batch(output, batch)
    }

    /// Begins to collect items into batches of `full_bytes` for these groups of outputs.
    ///
    /// # Errors
    /// When the worker collects items already.
    pub fn batch_items(
        &self,
        groups: Vec<OutputGroup>,
        full_bytes: usize,
    ) -> Result<ItemBatches, WorkerFailure> {
        ItemBatches::begin(Arc::clone(&self.shared), groups, full_bytes)
    }

    /// Sends a barrier to all outputs. The caller saves the returned positions in its state.
    ///
    /// # Errors
    /// The failure that ended an edge.
    pub fn send_barrier(&self, checkpoint: u64) -> Result<EdgePositions, WorkerFailure> {
        self.shared.send_barrier(checkpoint)
    }

    /// Ends all open outputs and waits until their consumers have processed everything. Closed
    /// outputs can no longer open.
    ///
    /// # Errors
    /// The failure that ended an edge.
    pub fn finish_outputs(&self) -> Result<(), WorkerFailure> {
        self.shared.finish_outputs()
    }

    /// Fails the worker and sends the reason to all peers, for at most 1 s.
    pub fn fail_with_reason(&self, why: &str) {
        self.shared
            .record_failure(WorkerFailure::Local(why.to_owned()));
        self.shared.wait_until_closed(FAILURE_REPORT_TIMEOUT);
    }

    /// Returns bytes and batches of each edge, and waiting times.
    pub fn stats(&self) -> WorkerStats {
        self.shared.snapshot_stats()
    }
}

impl Drop for DataflowWorker {
    fn drop(&mut self) {
        // Ends the edge thread. A finished worker's edges are closed, so this has no effect on it.
        self.shared.record_failure(WorkerFailure::Local(
            "the worker ended before its streams".to_owned(),
        ));
    }
}

/// Runs all edges until each has ended or one fails, and no further edge can open.
async fn run_edges<C: EdgeConnector>(
    shared: Arc<WorkerShared>,
    connector: impl FnOnce() -> io::Result<C>,
) {
    let connector = match connector() {
        Ok(connector) => Arc::new(connector),
        Err(error) => return shared.record_failure(WorkerFailure::Local(error.to_string())),
    };
    let mut edges = JoinSet::new();
    // Here, not on the user's thread: the user's code may wait long for its next item.
    let mut linger = pin!(shared.run_linger());
    loop {
        for (end, index) in shared.take_unstarted_edges() {
            let (shared, connector) = (Arc::clone(&shared), Arc::clone(&connector));
            match end {
                EdgeEnd::Consumer => edges.spawn(edge::run_consumer(shared, connector, index)),
                EdgeEnd::Producer => edges.spawn(edge::run_producer(shared, connector, index)),
            };
        }
        // An empty set alone is not the end: a pending edge may open between two checkpoints.
        if edges.is_empty() && !shared.can_open_more() {
            return shared.mark_closed();
        }
        tokio::select! {
            Some(_) = edges.join_next() => {}
            () = shared.wait_for_edges() => {}
            () = &mut linger => {}
        }
    }
}
