//! What workers say about the job's work: the control messages.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The longest report as JSON, in bytes.
pub const MAX_REPORT_BYTES: usize = 4 * 1024;

/// What a worker says about its work; the rendezvous passes it on unread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum JobReport {
    /// It can begin.
    Ready,
    /// It is done.
    Finished,
    /// Something it made can be fetched.
    Available {
        /// What; the job knows the name.
        output: String,
    },
    /// It cannot go on.
    Failed {
        /// For people.
        why: String,
    },
    /// What the job itself gives a meaning to.
    Other {
        /// Anything.
        body: Value,
    },
}

impl JobReport {
    /// Whether it is short enough to be passed on.
    pub fn is_within_limit(&self) -> bool {
        serde_json::to_string(self).is_ok_and(|text| text.len() <= MAX_REPORT_BYTES)
    }
}
