//! HTTP/3 for callers, on the same port, certificate and request path as TLS.
//!
//! Each thread has its own socket and endpoint. The kernel steers each packet to the thread of
//! its connection, even after the client's address has changed (`wire::h3::CidRouting`). [`accept`]
//! accepts clients, [`connection`] serves one of them, [`request`] answers one request,
//! [`early_data`] decides which requests may run before the handshake is complete.

mod accept;
mod client;
mod connection;
mod early_data;
mod half_open;
mod request;

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use nearpath_daemon::drain;
use nearpath_wire::h3::Http3ServerConfig;
use nearpath_wire::server::HttpLimits;
use tokio::sync::Barrier;

pub(crate) use accept::{Http3Endpoints, accept_connections};

use super::Http3Listener;
use crate::GatewaySettings;

/// Validity of `Alt-Svc` for clients, in seconds (RFC 7838 section 3.1, whose default this is).
const ALT_SVC_MAX_AGE_SECONDS: u32 = 24 * 3600;

/// HTTP/3 port as served by one thread.
pub(crate) struct Http3ListenPort {
    pub server_config: Http3ServerConfig,
    pub socket: UdpSocket,
    /// Number of the thread, which is part of its connection ids.
    pub thread: usize,
    /// Barrier at which the port's threads meet at the end.
    pub drained: Arc<Barrier>,
    pub limits: HttpLimits,
    pub tls_timeout: Duration,
    pub header_timeout: Duration,
    pub write_timeout: Duration,
    /// Maximum connections of this thread on this port.
    pub max_connections: usize,
    /// Share of this thread in [`crate::GatewaySettings::retry_above_handshakes`].
    pub retry_above_handshakes: usize,
    pub drain: drain::DrainWatch,
}

impl Http3ListenPort {
    /// Creates the port for thread `number`.
    ///
    /// # Errors
    /// When its socket cannot be shared.
    pub(crate) fn new(
        http3: &Http3Listener,
        number: usize,
        settings: &GatewaySettings,
        drain: &drain::DrainWatch,
    ) -> io::Result<Self> {
        let threads = http3.sockets.len();
        Ok(Self {
            server_config: http3.server_config.clone(),
            socket: http3.sockets[number].try_clone()?,
            thread: number,
            drained: http3.drained.clone(),
            limits: settings.limits,
            tls_timeout: settings.tls_timeout,
            header_timeout: settings.header_timeout,
            write_timeout: settings.write_timeout,
            max_connections: settings.max_connections.div_ceil(threads),
            retry_above_handshakes: settings.retry_above_handshakes.div_ceil(threads),
            drain: drain.clone(),
        })
    }
}

/// Returns the value of `Alt-Svc` (RFC 7838, RFC 9114 section 3.1.1); `None` if the port is
/// unknown.
pub(crate) fn alt_svc_value(http3: &Http3Listener) -> Option<HeaderValue> {
    let port = http3.sockets.first()?.local_addr().ok()?.port();
    HeaderValue::from_str(&format!("h3=\":{port}\"; ma={ALT_SVC_MAX_AGE_SECONDS}")).ok()
}
