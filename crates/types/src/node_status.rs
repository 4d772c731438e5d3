//! Status of nodes: JSON of `GET /system/nodes`, and what a node reports about itself and its
//! functions to others.

use serde::{Deserialize, Serialize};

use crate::instance_status::{InstanceStatus, UsageStatus};

/// Path below which a node reports its status to others (`contract/node.md`).
pub const NODE_STATUS_PATH: &str = "/node/v1/status";
/// Path of a node's logs for others.
pub const NODE_LOGS_PATH: &str = "/node/v1/logs";

/// State of a node, as another one sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// The node that replies.
    #[default]
    This,
    /// Calls go there.
    Up,
    /// The node takes no new calls.
    Draining,
    /// The node answers, but went down several times: no calls go there yet.
    HeldDown,
    /// The node does not answer.
    Down,
    /// First attempt to connect.
    Connecting,
    /// A state of a later release.
    #[serde(other)]
    Unknown,
}

impl NodeState {
    /// Returns the state as people read it.
    pub fn text(self) -> &'static str {
        match self {
            Self::This => "this",
            Self::Up => "up",
            Self::Draining => "draining",
            Self::HeldDown => "held down",
            Self::Down => "down",
            Self::Connecting => "connecting",
            Self::Unknown => "unknown",
        }
    }

    /// Returns whether queries go to the node.
    pub fn is_reachable(self) -> bool {
        matches!(
            self,
            Self::This | Self::Up | Self::Draining | Self::HeldDown
        )
    }
}

/// Node of an application.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Name; none: the only node, which needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `HOST:PORT` for other nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// State.
    pub state: NodeState,
    /// Cause of the state, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Release; none: not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Functions that may run there.
    pub functions: u64,
    /// Their ready instances.
    pub ready_instances: u64,
    /// Time since the last change of these numbers, in seconds; none for this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_age_seconds: Option<f64>,
    /// Smallest round-trip time of the last minute, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_seconds: Option<f64>,
    /// Node's clock minus that of this node, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_offset_seconds: Option<f64>,
    /// Folder that declares the node's state; none: the API changes it, or the node did not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceReport>,
}

/// Source of a node's state, as the node reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceReport {
    /// Folder on the node's machine.
    pub folder: String,
    /// Last revision of the state in use, as this node counts.
    pub revision: u64,
    /// Time of the last reading without a fault, RFC 3339; none: none since the process started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_at: Option<String>,
    /// Fault of the folder; the last good state is in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// Function on one node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeFunction {
    /// Name of the node; empty in the node's own report.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Name without its namespace; empty in the status of a function.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Instances wanted there; 0 where the function does not run.
    pub replicas: u64,
    /// Instances ready there.
    pub available_replicas: u64,
    /// Calls of clients and functions that this node received.
    pub invocation_count: f64,
    /// Revision wanted, as this node counts.
    #[serde(default)]
    pub revision: u64,
    /// Reason why fewer instances are ready than wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_ready_reason: Option<String>,
    /// Last failure of an instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,
    /// CPU and memory, on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageStatus>,
    /// Instances there, on request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<InstanceStatus>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_states_of_later_releases_are_read() {
        let read = |text| serde_json::from_str::<NodeState>(text).unwrap();
        assert_eq!(read(r#""held_down""#), NodeState::HeldDown);
        assert_eq!(read(r#""frozen""#), NodeState::Unknown);
        assert!(!NodeState::Unknown.is_reachable() && NodeState::Draining.is_reachable());
    }

    #[test]
    fn absent_facts_are_left_out_of_the_json() {
        let text = serde_json::to_string(&NodeStatus::default()).unwrap();
        assert_eq!(text, r#"{"state":"this","functions":0,"readyInstances":0}"#);
    }
}
