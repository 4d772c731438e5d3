//! Transport of calls to a function that shares no memory with its caller.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Transport of a call to an instance outside shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallTransport {
    /// The cheapest that is safe: TCP within a machine, between machines QUIC, or TLS where UDP
    /// does not get through.
    #[default]
    Auto,
    /// QUIC with certificates on both sides; TLS 1.3 where UDP does not get through.
    Quic,
    /// HTTP over TLS 1.3 with certificates on both sides.
    Tls13,
    /// HTTP over TLS 1.2, likewise.
    Tls12,
    /// HTTP over plain TCP.
    Tcp,
}

impl FromStr for CallTransport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            "quic" => Ok(Self::Quic),
            "tls13" => Ok(Self::Tls13),
            "tls12" => Ok(Self::Tls12),
            "tcp" => Ok(Self::Tcp),
            other => Err(format!(
                "invalid transport {other:?}: expected auto, quic, tls13, tls12 or tcp"
            )),
        }
    }
}

impl fmt::Display for CallTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Quic => "quic",
            Self::Tls13 => "tls13",
            Self::Tls12 => "tls12",
            Self::Tcp => "tcp",
        })
    }
}

/// Calls that may go in a connection's first flight (0-RTT), before the handshake is complete.
/// Between nearpath's own parts a recorded first flight is never run a second time
/// (`contract/quic.md`), so any call may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ZeroRttPolicy {
    /// Any.
    #[default]
    Always,
    /// Those whose method is idempotent (RFC 9110 section 9.2.2): the others wait for the
    /// handshake.
    Idempotent,
    /// None.
    Never,
}

impl FromStr for ZeroRttPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "always" => Ok(Self::Always),
            "idempotent" => Ok(Self::Idempotent),
            "never" => Ok(Self::Never),
            other => Err(format!(
                "invalid choice of calls {other:?}: expected idempotent, always or never"
            )),
        }
    }
}
