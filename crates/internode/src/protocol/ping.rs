//! Response to a ping.

use serde::{Deserialize, Serialize};

use super::NodeIncarnation;

/// Maximum bytes of a ping's response.
pub const MAX_PING_BYTES: usize = 4 * 1024;

/// Response to `GET /node/v1/ping`: the node answers, and this is its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PingResponse {
    /// Node's time in microseconds since 1970, UTC.
    pub time: u64,
    /// Run of the process that answered.
    pub incarnation: NodeIncarnation,
}
