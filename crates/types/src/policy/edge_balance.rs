//! Unit in which the calls of an edge are spread over instances.

use std::fmt;
use std::str::FromStr;

/// Unit in which HTTP calls by name are spread over the callee's instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EdgeBalance {
    /// The gateway sends each request to an instance.
    #[default]
    Request,
    /// The kernel connects each connection to an instance's own server, with no process in between.
    Connection,
}

impl FromStr for EdgeBalance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "request" => Ok(Self::Request),
            "connection" => Ok(Self::Connection),
            other => Err(format!(
                "invalid balance {other:?}: expected request or connection"
            )),
        }
    }
}

impl fmt::Display for EdgeBalance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request => "request",
            Self::Connection => "connection",
        })
    }
}
