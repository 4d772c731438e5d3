//! State of a function's autoscaler, as `describe` shows it.

use serde::{Deserialize, Serialize};

/// State of a function's autoscaler on the node that replies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalingStatus {
    /// Replicas that it wants; 0 while the function sleeps.
    pub replicas: u32,
    /// Reason for this number, for people.
    pub reason: String,
    /// Measured load: `rps`, `capacity` or `cpu`.
    #[serde(rename = "type")]
    pub metric: String,
    /// Load per replica, in the unit of the type.
    pub target: u32,
    /// Fewest replicas of a function that does not sleep.
    pub min: u32,
    /// Maximum number of replicas.
    pub max: u32,
}
