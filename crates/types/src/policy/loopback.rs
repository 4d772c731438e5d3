//! Delivery of bytes between the gateway and a function's own server.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Delivery of bytes between the gateway and a function's own server on the same machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoopbackDelivery {
    /// TCP over the loopback device of the instance.
    #[default]
    Tcp,
    /// SK_MSG: the kernel puts the bytes into the receiver's queue.
    Sockmap,
}

impl FromStr for LoopbackDelivery {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "tcp" => Ok(Self::Tcp),
            "sockmap" => Ok(Self::Sockmap),
            other => Err(format!(
                "invalid delivery {other:?}: expected tcp or sockmap"
            )),
        }
    }
}

impl fmt::Display for LoopbackDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Sockmap => "sockmap",
        })
    }
}
