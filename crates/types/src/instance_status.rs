//! Status of an instance, and resources in use: parts of the status of a function.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Resources in use, summed over a function's instances.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageStatus {
    /// Thousandths of a core, averaged since the last reading.
    pub cpu: f64,
    /// Resident memory.
    pub total_memory_bytes: f64,
}

/// Instance, as `describe` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatus {
    /// Its id: `NODE/iX`, or `iX` on the only node.
    pub id: String,
    /// `starting`, `ready` or `draining`.
    pub state: String,
    /// Address of its watchdog.
    pub addr: String,
    /// The revision it runs.
    pub revision: u64,
    /// Process id of its watchdog on the node.
    pub pid: u32,
    /// Duration of its start in milliseconds, by phase. Some phases overlap others.
    pub start_ms: BTreeMap<String, f64>,
    /// Time from the begin of its start until it was ready, in milliseconds of wall time. Absent
    /// before, and from older servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_ms: Option<f64>,
}
