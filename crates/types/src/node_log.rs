//! Lines of a log of several nodes.

use serde::{Deserialize, Serialize};

use crate::status::LogLine;

/// Line of a log of several nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLogLine {
    /// Line of an instance, or the text about a node whose lines are missing.
    #[serde(flatten)]
    pub line: LogLine,
    /// Name of the node; none: the only node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Cause for which lines of this node are missing; none: it is a line of an instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
