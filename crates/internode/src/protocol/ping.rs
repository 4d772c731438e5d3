//! Ping: what the asking node's routes reflect, and the response.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::query_fields::find_field;
use super::{NodeIncarnation, PING_PATH};

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

/// Report of a node that pings: what its routes reflect of the node that it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppliedReport {
    /// Run of the asked node that the routes reflect.
    pub incarnation: NodeIncarnation,
    /// The routes send no new calls to the node, because it drains.
    pub is_draining: bool,
}

impl AppliedReport {
    /// Returns path and query of a ping with this report.
    pub fn to_path(self) -> String {
        let mut path = PING_PATH.to_owned();
        // Writing to a string cannot fail.
        let _ = write!(
            path,
            "?incarnation={}&draining={}",
            self.incarnation, self.is_draining
        );
        path
    }

    /// Reads the query of a ping; `None`: an older release, or a fault. Unknown fields are ignored.
    pub fn parse_query(query: &str) -> Option<Self> {
        let field = |name| find_field(query, name);
        Some(Self {
            incarnation: field("incarnation")?.parse().ok()?,
            is_draining: field("draining")?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_written() {
        for is_draining in [false, true] {
            let report = AppliedReport {
                incarnation: NodeIncarnation(0x1f),
                is_draining,
            };
            let path = report.to_path();
            let (path, query) = path.split_once('?').unwrap();
            assert_eq!(path, PING_PATH);
            assert_eq!(AppliedReport::parse_query(query), Some(report));
            let newer = format!("more=1&{query}&again");
            assert_eq!(AppliedReport::parse_query(&newer), Some(report));
        }
        for other in [
            "",
            "draining=true",
            "incarnation=000000000000001f&draining=1",
        ] {
            assert_eq!(AppliedReport::parse_query(other), None, "{other}");
        }
    }
}
