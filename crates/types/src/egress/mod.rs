//! Destinations outside that a function may reach, and how the node carries it there.

mod cache_and_prefetch;
mod defaults;
mod display;
mod fault;
mod host;
mod parse;
pub mod protocol;
mod settings;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use fault::{EgressFault, InvalidEgress};
pub use host::EgressHost;
pub use parse::{EgressBuilder, MAX_DESTINATIONS, parse_list};
pub use protocol::EgressProtocol;
pub use settings::SETTING_NAMES;

/// One declared destination. Its text form, one item of the annotation [`EGRESS`](crate::policy::EGRESS), is `HOST:PORT` and settings `KEY=VALUE`
/// after blanks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EgressSpec {
    /// The host as it was declared.
    pub host: EgressHost,
    /// Its port, not 0.
    pub port: u16,
    /// What is spoken there.
    pub protocol: EgressProtocol,
    /// How long a client keeps a connection to a database of its own.
    pub mode: PoolingMode,
    /// Most connections that the node has open there at a time, for all replicas together.
    pub max: u32,
    /// Most connections kept open for nobody yet; 0: none.
    pub warm: u32,
    /// A connection that nobody used for so long is closed.
    pub idle: Duration,
    /// A connection older than this is not handed out again.
    pub age: Duration,
    /// Longest wait for a free connection.
    pub wait: Duration,
    /// As whom the node logs in, instead of passing the function's own password on.
    pub login: Option<EgressLogin>,
    /// Who speaks TLS.
    pub tls: EgressTls,
    /// Who shares connections.
    pub shared: SharingScope,
    /// Whether answers are kept, and how long or how many; `NoConnection`: no.
    pub cache: Option<CacheLimit>,
    /// When a write counts as done.
    pub writes: WriteMode,
    /// What is read for the function as soon as somebody calls it: paths of HTTP, keys of Redis.
    pub prefetch: Vec<String>,
}

/// How long a client of a database keeps a connection of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolingMode {
    /// Until it leaves.
    Session,
    /// For each transaction.
    Transaction,
}

/// As whom the node logs in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EgressLogin {
    /// The user at the destination.
    pub user: String,
    /// The name of the function's secret that holds the password; `NoConnection`: there is none.
    pub password: Option<String>,
    /// The database; `NoConnection`: the one that the client names.
    pub database: Option<String>,
}

/// Which answers are kept to be given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheLimit {
    /// HTTP: what the server permits to keep (RFC 9111), so many bytes of it at most.
    Bytes(u64),
    /// Redis: values, for so long at most.
    For(Duration),
}

/// When a write counts as done for the function that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WriteMode {
    /// When the destination says so.
    Sync,
    /// When the node has it.
    Async {
        /// How long the node goes on delivering when the function is gone.
        flush: Duration,
    },
}

/// Who speaks TLS with the destination.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EgressTls {
    /// The function, if anybody.
    Pass,
    /// The node: the function speaks plainly. Authorities of the system, or those of a secret of the function.
    Originate {
        /// The name of the secret that holds certificates of authorities, in PEM.
        ca: Option<String>,
    },
}

/// Who shares connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SharingScope {
    /// The instances of one function.
    Function,
    /// All functions of its chain that declare the same destination with the same settings.
    Chain,
}
