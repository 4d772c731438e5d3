//! What a worker has done so far.

use serde::Serialize;

/// Of one worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WorkerStats {
    /// In the order of the inputs.
    pub inputs: Vec<EdgeStats>,
    /// In the order of the outputs.
    pub outputs: Vec<EdgeStats>,
    /// Seconds in which there was nothing to process; a wait that goes on counts.
    pub waited_for_input: f64,
    /// Seconds in which no consumer had room, or was through at the end; a wait that goes on counts.
    pub waited_for_room: f64,
}

/// Of one edge.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EdgeStats {
    /// The worker at the other end.
    pub peer: String,
    /// So many batches: those that came in, or went out (to disk, too).
    pub batches: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that went by way of the disk.
    pub spilled: u64,
    /// The path of most of them: `local`, `punch` or `relay`; empty while there is no stream.
    pub path: &'static str,
    /// Bytes that a relay carried, with what encryption adds to them.
    pub relayed: u64,
}
