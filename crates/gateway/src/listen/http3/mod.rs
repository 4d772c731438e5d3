//! Callers over HTTP/3: on the same port and with the same certificate as TLS, and on the same path as all others.
//!
//! Each thread has a socket and an endpoint of its own; the kernel hands each packet to the thread that has its connection, also
//! when the client's address has changed (`wire::h3::Steering`). [`accept`] lets clients in, [`connection`] serves one of them,
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
use nearpath_wire::h3::Site;
use nearpath_wire::server::Limits;
use tokio::sync::Barrier;

pub(crate) use accept::{Ends, accept};

use super::Http3;
use crate::Settings;

/// How long a client may believe that HTTP/3 is where it was told, in seconds.
const BELIEVED: u32 = 24 * 3600;

/// A port as one thread serves it.
pub(crate) struct Port {
    pub site: Site,
    pub socket: UdpSocket,
    /// The thread's number, which its connections' ids bear.
    pub thread: usize,
    /// Where the port's threads meet at the end.
    pub over: Arc<Barrier>,
    pub limits: Limits,
    pub tls_timeout: Duration,
    pub header_timeout: Duration,
    pub write_timeout: Duration,
    /// Connections that this thread may have on this port.
    pub connections: usize,
    /// See [`crate::Settings::retry_above`]; this thread's part.
    pub retry_above: usize,
    pub drain: drain::Watch,
}

impl Port {
    /// The port as thread `number` serves it.
    ///
    /// # Errors
    /// When its socket cannot be shared.
    pub(crate) fn new(http3: &Http3, number: usize, settings: &Settings, drain: &drain::Watch) -> io::Result<Self> {
        let threads = http3.sockets.len();
        Ok(Self {
            site: http3.site.clone(),
            socket: http3.sockets[number].try_clone()?,
            thread: number,
            over: http3.over.clone(),
            limits: settings.limits,
            tls_timeout: settings.tls_timeout,
            header_timeout: settings.header_timeout,
            write_timeout: settings.write_timeout,
            connections: settings.max_connections.div_ceil(threads),
            retry_above: settings.retry_above.div_ceil(threads),
            drain: drain.clone(),
        })
    }
}

/// What `Alt-Svc` says of it (RFC 7838, RFC 9114 section 3.1.1). `None`: it cannot be told.
pub(crate) fn advertised(http3: &Http3) -> Option<HeaderValue> {
    let port = http3.sockets.first()?.local_addr().ok()?.port();
    HeaderValue::from_str(&format!("h3=\":{port}\"; ma={BELIEVED}")).ok()
}
