//! Ports that the gateway serves.

use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;

use nearpath_wire::h3;
use tokio::sync::Barrier;

use crate::request::ListenerZone;

/// A port to serve.
pub struct GatewayListener {
    /// Callers that can reach the port.
    pub zone: ListenerZone,
    /// TLS configuration; `None` for plain text.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Sockets, usually one per thread; see `nearpath_wire::bind`, which also sets inherited
    /// options. With fewer sockets, threads share them; with more, each serves several.
    pub sockets: Vec<TcpListener>,
    /// HTTP/3 on the same port, if enabled.
    pub http3: Option<Http3Listener>,
}

/// HTTP/3 on the port of a TLS listener.
pub struct Http3Listener {
    pub(super) server_config: h3::Http3ServerConfig,
    pub(crate) sockets: Vec<UdpSocket>,
    /// Barrier for threads without connections. Until all have arrived, each refuses new
    /// connections.
    pub(super) drained: Arc<Barrier>,
}

impl Http3Listener {
    /// Creates the listener. Either one socket per thread in binding order with
    /// [`h3::CidRouting::bpf_program`] attached, or a single socket.
    pub fn new(server_config: h3::Http3ServerConfig, sockets: Vec<UdpSocket>) -> Self {
        // All sockets of the port close together, see `http3::accept`.
        let drained = Arc::new(Barrier::new(sockets.len()));
        Self {
            server_config,
            sockets,
            drained,
        }
    }
}
