//! What an operator can set for the gateway. What a tenant can set for a function is `nearpath_types::FunctionPolicy`.

use std::time::Duration;

use nearpath_wire::server::HttpLimits;

/// The gateway's settings. The defaults are meant to be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewaySettings {
    /// The gateway's name in `X-Served-By`; visible ASCII, anything else is left out.
    pub name: String,
    /// Limits of a request's head and of HTTP/2.
    pub limits: HttpLimits,
    /// Connections on one listener, over all threads. Above: newcomers wait in the kernel's backlog.
    pub max_connections: usize,
    /// From a request's first byte to the end of its head; also from accepting to the first request.
    pub header_timeout: Duration,
    /// A connection without a request is closed after it.
    pub idle_timeout: Duration,
    /// A caller that reads nothing of its answer for so long is cut off.
    pub write_timeout: Duration,
    /// From accepting to the end of TLS's handshake.
    pub tls_timeout: Duration,
    /// Handshakes of HTTP/3 under way, over all threads, from which on newcomers prove their address first (Retry, RFC 9000
    /// section 8.1.2), at the cost of a round trip; 0: always.
    pub retry_above_handshakes: usize,
    /// Longest silence inside a request's body.
    pub body_idle_timeout: Duration,
    /// For a connection to an instance. Loopback and veth answer at once, or not at all.
    pub connect_timeout: Duration,
    /// A connection to an instance that nobody used for so long is closed.
    pub pool_idle_timeout: Duration,
    /// Instances that one request is offered to in a row before it pauses.
    pub max_attempts: usize,
    /// How long requests may go on after the drain has begun.
    pub drain_timeout: Duration,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            name: "nearpath".into(),
            limits: HttpLimits::default(),
            max_connections: 16_384,
            header_timeout: seconds(10),
            idle_timeout: seconds(75),
            write_timeout: seconds(60),
            tls_timeout: seconds(10),
            retry_above_handshakes: 512,
            body_idle_timeout: seconds(30),
            connect_timeout: seconds(2),
            pool_idle_timeout: seconds(60),
            max_attempts: 3,
            drain_timeout: seconds(30),
        }
    }
}
