//! Status of a chain: counters of its edges, holders of its memory, and paths of its calls. JSON of
//! `GET /system/edges`, `/system/memory` and `/system/paths`.

use serde::{Deserialize, Serialize};

use crate::instance_label::label_instance;
use crate::status_row::StatusRow;
use crate::{FunctionId, Namespace, NodeName};

/// Name of the gateway as a caller. Full names of functions contain a dot, so none is equal.
pub const GATEWAY_NAME: &str = "gateway";

/// Counters of an edge: calls over all paths, and connections to the callee's virtual address. Messages are
/// those in shared memory alone. A call that the gateway delivers through shared memory is also in the row of
/// the caller [`GATEWAY_NAME`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EdgeStatus {
    /// Node that counted; none: the only node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The chain.
    pub chain: String,
    /// Its namespace.
    pub namespace: String,
    /// `NAME.NAMESPACE`, or [`GATEWAY_NAME`].
    pub caller: String,
    /// `NAME.NAMESPACE`.
    pub callee: String,
    /// Calls that ended, as the caller counted, or the gateway of its node.
    pub requests: u64,
    /// Of these, the failed ones: status 500 or above, no complete response, or a `grpc-status` that is a
    /// fault of the callee.
    pub failed: u64,
    /// Calls that have not ended.
    pub in_flight: u64,
    /// Messages that the caller sent: calls, their parts, events and cancellations.
    pub call_messages: u64,
    /// Bytes of these, envelopes included, and of request bodies that the gateway passed on.
    pub call_bytes: u64,
    /// Messages that the callee sent: responses and their parts.
    pub answer_messages: u64,
    /// Bytes of these, envelopes included, and of response bodies that the gateway passed on.
    pub answer_bytes: u64,
    /// Total time of the calls in seconds.
    pub seconds: f64,
    /// Histogram of latency, from the shortest to the longest bucket, which has no upper bound.
    pub latency: Vec<LatencyBucket>,
    /// TCP connections and flows of datagrams to the callee's virtual address or instances.
    #[serde(default)]
    pub connections: u64,
    /// Of these, those that found no ready instance on the node.
    #[serde(default)]
    pub cold_connections: u64,
    /// Connections that were denied: no edge is declared.
    #[serde(default)]
    pub denied_connections: u64,
    /// Bytes of ended TCP connections, in both directions, but those of HTTP to the gateway: its calls have
    /// bytes of their own.
    #[serde(default)]
    pub connection_bytes: u64,
}

/// Calls that a function received past the gateway: through shared memory as it counted them, over
/// QUIC as its callers did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectCallCounts {
    /// Calls that have ended, including failed ones.
    pub ended: u64,
    /// Of these, the failed ones: status 500 or above, cancelled by the caller, or lost with the
    /// instance.
    pub failed: u64,
    /// Calls that have not ended.
    pub open: u64,
}

/// Bucket of a histogram.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyBucket {
    /// Upper bound in seconds, exclusive; none: no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<f64>,
    /// Calls in this bucket and in no other.
    pub count: u64,
}

/// Memory of a chain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryStatus {
    /// Node with the memory; none: the only node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
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
    pub huge_pages_unavailable: bool,
    /// Bytes held by endpoints that have died; returned within a second or so.
    pub dead_bytes: u64,
    /// Entry per function with endpoints, and one for the gateway.
    pub holders: Vec<HolderStatus>,
}

/// Memory that a function holds in its chain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HolderStatus {
    /// `NAME.NAMESPACE`, or [`GATEWAY_NAME`].
    pub function: String,
    /// Endpoints: threads that send and receive.
    pub endpoints: u64,
    /// Slots that they hold.
    pub slots: u64,
    /// Bytes of these slots.
    pub bytes: u64,
    /// Bytes that they may hold.
    pub max_held_bytes: u64,
}

/// Path of a plain call from one instance to another. A call to another node has two paths: to that
/// node, and inside it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PathStatus {
    /// Node of the caller; none: the only node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Chain of the caller, or of the callee if the gateway calls; none: it belongs to none.
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
    /// Obstacle of the next nearer path; none: there is no nearer one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
    /// The obstacle as a sentence, or the reason why there is no path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Other node to which `path` leads; none: the call stays on the caller's node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callee_node: Option<String>,
    /// Path inside that node; none: the node has no ready instance, or did not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inner_path: Option<String>,
    /// Obstacle of the next nearer path inside that node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inner_obstacle: Option<String>,
    /// That obstacle as a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inner_reason: Option<String>,
}

impl StatusRow for EdgeStatus {
    fn set_node(&mut self, node: &NodeName) {
        self.node = Some(node.to_string());
    }

    fn is_in_namespace(&self, namespace: &Namespace) -> bool {
        self.namespace == namespace.as_str()
    }

    fn is_about(&self, name: &FunctionId) -> bool {
        let function = name.to_string();
        // A name may be that of a chain or of a function: both are filters of the command line.
        self.chain == name.name.as_str() || self.caller == function || self.callee == function
    }
}

impl StatusRow for MemoryStatus {
    fn set_node(&mut self, node: &NodeName) {
        self.node = Some(node.to_string());
    }

    fn is_in_namespace(&self, namespace: &Namespace) -> bool {
        self.namespace == namespace.as_str()
    }

    fn is_about(&self, name: &FunctionId) -> bool {
        let function = name.to_string();
        // Memory belongs to the chain, so a function selects the whole row of its chain.
        self.chain == name.name.as_str()
            || self
                .holders
                .iter()
                .any(|holder| holder.function == function)
    }
}

impl StatusRow for PathStatus {
    fn set_node(&mut self, node: &NodeName) {
        self.node = Some(node.to_string());
        // A direct call leads to an instance of another node, which labels it.
        let callee_node = self.callee_node.as_deref().map(str::parse::<NodeName>);
        let callee_node = callee_node.and_then(Result::ok).unwrap_or(node.clone());
        if let Some(id) = &mut self.callee_instance {
            *id = label_instance(Some(&callee_node), &*id);
        }
        if let Some(id) = &mut self.caller_instance {
            *id = label_instance(Some(node), &*id);
        }
    }

    /// An edge may begin in one namespace and end in another: its path belongs to both.
    fn is_in_namespace(&self, namespace: &Namespace) -> bool {
        // The gateway is no function: its name has no dot, and would be read as one of the default
        // namespace.
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
