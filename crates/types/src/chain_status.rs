//! What is observed of a chain: what its edges counted, who holds its memory, and which path its calls take. The JSON of
//! `GET /system/edges`, `/system/memory` and `/system/paths`.

use serde::{Deserialize, Serialize};

use crate::status_query::StatusRow;
use crate::{FunctionId, Namespace};

/// The gateway as a caller. No function's full name lacks a dot.
pub const GATEWAY_NAME: &str = "gateway";

/// What an edge counted of calls through shared memory, and of those that went straight over QUIC. Calls between functions that went by the
/// gateway are not in it; messages and bytes are those in memory alone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EdgeStatus {
    /// The chain.
    pub chain: String,
    /// Its namespace.
    pub namespace: String,
    /// `NAME.NAMESPACE`, or [`GATEWAY_NAME`].
    pub caller: String,
    /// `NAME.NAMESPACE`.
    pub callee: String,
    /// Calls that ended, as the caller counted.
    pub requests: u64,
    /// Of these, the failed ones: answered with 500 or above, or not at all.
    pub failed: u64,
    /// Calls that have not ended.
    pub in_flight: u64,
    /// Messages that the caller sent: calls, their parts, events and cancellations.
    pub call_messages: u64,
    /// Bytes of these, envelopes included.
    pub call_bytes: u64,
    /// Messages that the callee sent: answers and their parts.
    pub answer_messages: u64,
    /// Bytes of these, envelopes included.
    pub answer_bytes: u64,
    /// How long the calls took together, in seconds.
    pub seconds: f64,
    /// How long each took: from the shortest to the longest bucket, which has no upper bound.
    pub latency: Vec<LatencyBucket>,
}

/// Calls that a function received from other functions past the gateway: through shared memory, as it counted them itself, or over QUIC, as
/// its callers did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectCallCounts {
    /// Those that ended, the failed ones too.
    pub ended: u64,
    /// Of these: answered with 500 or above, given up by the caller, or lost with the instance.
    pub failed: u64,
    /// Those that have not ended.
    pub open: u64,
}

/// One bucket of a histogram.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyBucket {
    /// Upper bound in seconds, itself not included; none: no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<f64>,
    /// Calls in this bucket and in no other.
    pub count: u64,
}

/// The memory of a chain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryStatus {
    /// The chain.
    pub chain: String,
    /// Its namespace.
    pub namespace: String,
    /// Bytes of all slots of the pool.
    pub size_bytes: u64,
    /// Bytes of the slots that are not free.
    pub used_bytes: u64,
    /// Bytes of one page: 4096, or 2097152 for huge pages.
    pub page_bytes: u64,
    /// Huge pages were asked for (`nearpath.io/pages`), and there were too few.
    pub missed_huge: bool,
    /// Held by parties that have died; given back within a second or so.
    pub dead_bytes: u64,
    /// One entry a function that has parties, and one for the gateway.
    pub holders: Vec<HolderStatus>,
}

/// What a function holds of its chain's memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HolderStatus {
    /// `NAME.NAMESPACE`, or [`GATEWAY_NAME`].
    pub function: String,
    /// Its parties: threads that send and receive.
    pub parties: u64,
    /// Slots that they hold.
    pub slots: u64,
    /// Bytes of these slots.
    pub bytes: u64,
    /// Bytes that they may hold.
    pub bound_bytes: u64,
}

/// Which path a plain call takes from one instance to another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PathStatus {
    /// The caller's chain, the callee's if the gateway calls; none: it belongs to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
    /// `NAME.NAMESPACE`, or [`GATEWAY_NAME`].
    pub caller: String,
    /// The calling instance; none for the gateway, and where none is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller_instance: Option<String>,
    /// `NAME.NAMESPACE`.
    pub callee: String,
    /// The called instance; none where none is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callee_instance: Option<String>,
    /// `shm`, `http`, …; none where an instance is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What stands against the next nearer path; none: there is no nearer one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_nearer: Option<String>,
    /// The same for people, or why there is no path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl StatusRow for EdgeStatus {
    fn is_in_namespace(&self, namespace: &Namespace) -> bool {
        self.namespace == namespace.as_str()
    }

    fn is_about(&self, name: &FunctionId) -> bool {
        let function = name.to_string();
        self.chain == name.name.as_str() || self.caller == function || self.callee == function
    }
}

impl StatusRow for MemoryStatus {
    fn is_in_namespace(&self, namespace: &Namespace) -> bool {
        self.namespace == namespace.as_str()
    }

    fn is_about(&self, name: &FunctionId) -> bool {
        let function = name.to_string();
        self.chain == name.name.as_str()
            || self
                .holders
                .iter()
                .any(|holder| holder.function == function)
    }
}

impl StatusRow for PathStatus {
    /// An edge may begin in one namespace and end in another: its path belongs to both.
    fn is_in_namespace(&self, namespace: &Namespace) -> bool {
        // The gateway is no function: its name has no dot, and would be read as one of the default namespace.
        let is_in = |function: &str| {
            function.contains('.')
                && function
                    .parse::<FunctionId>()
                    .is_ok_and(|id| id.namespace == *namespace)
        };
        is_in(&self.caller) || is_in(&self.callee)
    }

    fn is_about(&self, name: &FunctionId) -> bool {
        let function = name.to_string();
        self.chain.as_deref() == Some(name.name.as_str())
            || self.caller == function
            || self.callee == function
    }
}
