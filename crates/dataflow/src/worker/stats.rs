//! Counters of a worker.

use serde::Serialize;

/// Counters of one worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WorkerStats {
    /// Inputs, in order.
    pub inputs: Vec<EdgeStats>,
    /// Outputs, in order.
    pub outputs: Vec<EdgeStats>,
    /// Seconds without a batch to process, including the current wait.
    pub waited_for_input: f64,
    /// Seconds without room at a consumer, or until the consumers had finished, including the
    /// current wait.
    pub waited_for_room: f64,
}

/// Counters of one edge.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EdgeStats {
    /// Worker at the other end.
    pub peer: String,
    /// Batches received or sent, including those written to disk.
    pub batches: u64,
    /// Bytes of these batches.
    pub bytes: u64,
    /// Bytes that went through the disk.
    pub spilled: u64,
    /// Path of most bytes: `local`, `punch` or `relay`; empty while there is no stream.
    pub path: &'static str,
    /// Bytes that a relay carried, including the overhead of encryption.
    pub relayed: u64,
}
