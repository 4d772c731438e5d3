//! Reports about a job's work: the control messages of its workers.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Largest report as JSON, in bytes.
pub const MAX_REPORT_BYTES: usize = 4 * 1024;

/// Report of a worker; the rendezvous forwards it unread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum JobReport {
    /// Worker can begin.
    Ready,
    /// Worker is done.
    Finished,
    /// Output of the worker can be fetched.
    Available {
        /// Name of the output, known to the job.
        output: String,
    },
    /// Worker cannot continue.
    Failed {
        /// Cause, for people.
        reason: String,
    },
    /// Content that the job itself defines.
    Other {
        /// Any JSON value.
        body: Value,
    },
}

impl JobReport {
    /// Returns whether it is short enough to be forwarded.
    pub fn is_within_limit(&self) -> bool {
        serde_json::to_string(self).is_ok_and(|text| text.len() <= MAX_REPORT_BYTES)
    }
}
