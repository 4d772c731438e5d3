//! Destinations outside that a function may reach, with the settings of their connections.

mod cache_and_prefetch;
mod defaults;
mod display;
mod fault;
mod host;
mod node_share;
mod parse;
pub mod protocol;
mod settings;
#[cfg(test)]
mod tests;
mod values;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use fault::{EgressFault, InvalidEgress};
pub use host::EgressHost;
pub use node_share::{EgressPlacements, limit_group, node_share};
pub use parse::{EgressBuilder, MAX_DESTINATIONS, parse_list};
pub use protocol::EgressProtocol;
pub use settings::SETTING_NAMES;

/// Declared destination. Its text form, an item of the annotation
/// [`EGRESS`](crate::policy::EGRESS), is `HOST:PORT` and settings `KEY=VALUE` after blanks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EgressSpec {
    /// The host as it was declared.
    pub host: EgressHost,
    /// Its port, not 0.
    pub port: u16,
    /// Protocol of the destination.
    pub protocol: EgressProtocol,
    /// Time for which a database client keeps a connection.
    pub mode: PoolingMode,
    /// Limit of open connections, for all replicas on all nodes together.
    pub max: u32,
    /// Limit of connections kept open before their first client; 0: none.
    pub warm: u32,
    /// Time after which an unused connection is closed.
    pub idle: Duration,
    /// A connection older than this is not handed out again.
    pub age: Duration,
    /// Longest wait for a free connection.
    pub wait: Duration,
    /// Login of the node, instead of the function's own password.
    pub login: Option<EgressLogin>,
    /// Origin of TLS: the function or the node.
    pub tls: EgressTls,
    /// Scope in which connections are shared.
    pub shared: SharingScope,
    /// Limit of cached responses; `None`: no cache.
    pub cache: Option<CacheLimit>,
    /// Time at which a write counts as done.
    pub writes: WriteMode,
    /// Reads issued as soon as the function is called: paths of HTTP, keys of Redis.
    pub prefetch: Vec<String>,
}

/// Time for which a database client keeps a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolingMode {
    /// Until the client disconnects.
    Session,
    /// For each transaction.
    Transaction,
}

/// Login of the node at a destination.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EgressLogin {
    /// The user at the destination.
    pub user: String,
    /// Name of the function's secret that holds the password; `None`: there is none.
    pub password: Option<String>,
    /// Database; `None`: the one that the client names.
    pub database: Option<String>,
}

/// Limit of cached responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheLimit {
    /// HTTP: bytes of responses that the server permits to cache (RFC 9111).
    Bytes(u64),
    /// Redis: time for which values are kept.
    For(Duration),
}

/// Time at which a write counts as done for the function that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WriteMode {
    /// When the destination confirms it.
    Sync,
    /// When the node has it.
    Async {
        /// Time for which the node goes on delivering after the function has ended.
        flush: Duration,
    },
}

/// Origin of TLS with the destination.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EgressTls {
    /// The function, if any.
    Pass,
    /// The node: the function speaks plain text. Trusts the system's authorities, or those of a
    /// secret of the function.
    Originate {
        /// The name of the secret that holds certificates of authorities, in PEM.
        ca: Option<String>,
    },
}

/// Scope in which connections are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SharingScope {
    /// The instances of one function.
    Function,
    /// All functions of its chain that declare the same destination with the same settings.
    Chain,
}
