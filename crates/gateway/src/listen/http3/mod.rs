//! Callers over HTTP/3: on the same port and with the same certificate as TLS, and on the same path as all others.
//!
//! Each thread has a socket and an endpoint of its own; the kernel hands each packet to the thread that has its connection, also
//! when the client's address has changed (`wire::h3::CidRouting`). [`accept`] lets clients in, [`connection`] serves one of them,
//! [`request`] answers one request, [`early_data`] says which requests may run before the handshake is complete.

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

/// How long a client may believe that HTTP/3 is where it was told, in seconds.
const ALT_SVC_MAX_AGE_SECONDS: u32 = 24 * 3600;

/// A port as one thread serves it.
pub(crate) struct Http3ListenPort {
    pub server_config: Http3ServerConfig,
    pub socket: UdpSocket,
    /// The thread's number, which its connections' ids bear.
    pub thread: usize,
    /// Where the port's threads meet at the end.
    pub drained: Arc<Barrier>,
    pub limits: HttpLimits,
    pub tls_timeout: Duration,
    pub header_timeout: Duration,
    pub write_timeout: Duration,
    /// Connections that this thread may have on this port.
    pub max_connections: usize,
    /// See [`crate::GatewaySettings::retry_above_handshakes`]; this thread's part.
    pub retry_above_handshakes: usize,
    pub drain: drain::DrainWatch,
}

impl Http3ListenPort {
    /// The port as thread `number` serves it.
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

/// What `Alt-Svc` says of it (RFC 7838, RFC 9114 section 3.1.1). `NoConnection`: it cannot be told.
pub(crate) fn alt_svc_value(http3: &Http3Listener) -> Option<HeaderValue> {
    let port = http3.sockets.first()?.local_addr().ok()?.port();
    HeaderValue::from_str(&format!("h3=\":{port}\"; ma={ALT_SVC_MAX_AGE_SECONDS}")).ok()
}
