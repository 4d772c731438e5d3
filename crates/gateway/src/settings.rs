//! Settings for operators. Settings for tenants are in `nearpath_types::FunctionPolicy`.

use std::path::PathBuf;
use std::time::Duration;

use nearpath_types::NodeName;
use nearpath_wire::server::HttpLimits;

/// Settings of the gateway. The defaults suit most deployments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewaySettings {
    /// Name in `X-Served-By`. Names that are not visible ASCII are replaced by `nearpath`.
    pub name: String,
    /// Name of this node among others, for ids of instances in texts; `None`: it is the only one.
    pub node: Option<NodeName>,
    /// Limits of request heads and of HTTP/2.
    pub limits: HttpLimits,
    /// Maximum connections of one listener, over all threads. Further ones wait in the kernel's
    /// backlog.
    pub max_connections: usize,
    /// Time from the first byte of a request to the end of its head; also from accept to the
    /// first request.
    pub header_timeout: Duration,
    /// Maximum time without a request before a connection closes.
    pub idle_timeout: Duration,
    /// Maximum time for which a caller may read nothing of its response.
    pub write_timeout: Duration,
    /// Time from accept to the end of the TLS handshake.
    pub tls_timeout: Duration,
    /// Open HTTP/3 handshakes, over all threads, above which new clients must prove their address
    /// first (Retry, RFC 9000 section 8.1.2). Retry costs one round trip; 0 means always.
    pub retry_above_handshakes: usize,
    /// Maximum silence within a request body.
    pub body_idle_timeout: Duration,
    /// Minimum bytes per second of a request body while the gateway waits for it; 0: no minimum.
    pub min_body_rate: u64,
    /// Minimum bytes per second that a caller reads of a waiting response; 0: no minimum.
    pub min_read_rate: u64,
    /// Time for which a caller may fall behind a minimum rate.
    pub min_rate_grace: Duration,
    /// Timeout of a connection to an instance. Loopback and veth answer at once or not at all.
    pub connect_timeout: Duration,
    /// Maximum idle time of a connection to an instance.
    pub pool_idle_timeout: Duration,
    /// Instances tried in a row for one request before it pauses.
    pub max_attempts: usize,
    /// Size of a request's body in bytes from which calls to other nodes use TLS instead of QUIC.
    pub min_bulk_bytes: u64,
    /// Maximum TLS connections to each other node that plain requests use instead of QUIC streams; 0:
    /// none.
    pub max_node_connections: usize,
    /// Maximum time for open requests after the drain has begun.
    pub drain_timeout: Duration,
    /// Folder for bodies that are read ahead of slow callers; it is created, or emptied. `None`:
    /// such bodies are in memory only.
    pub spool_dir: Option<PathBuf>,
}

impl GatewaySettings {
    /// Default of [`GatewaySettings::min_bulk_bytes`]. By `nearpath-bench nodes` TLS takes less CPU time for
    /// all sizes from 1 KiB on, and a third less from 16 KiB on, which is worth a handshake.
    pub const MIN_BULK_BYTES: u64 = 16 * 1024;
    /// Default of [`GatewaySettings::max_node_connections`].
    pub const MAX_NODE_CONNECTIONS: usize = 128;
}

impl Default for GatewaySettings {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            name: "nearpath".into(),
            node: None,
            limits: HttpLimits::default(),
            max_connections: 16_384,
            header_timeout: seconds(10),
            idle_timeout: seconds(75),
            write_timeout: seconds(60),
            tls_timeout: seconds(10),
            retry_above_handshakes: 512,
            body_idle_timeout: seconds(30),
            min_body_rate: 240,
            min_read_rate: 240,
            min_rate_grace: seconds(10),
            connect_timeout: seconds(2),
            pool_idle_timeout: seconds(60),
            max_attempts: 3,
            min_bulk_bytes: Self::MIN_BULK_BYTES,
            max_node_connections: Self::MAX_NODE_CONNECTIONS,
            drain_timeout: seconds(30),
            spool_dir: None,
        }
    }
}
