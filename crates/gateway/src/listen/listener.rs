//! Ports that the gateway serves.

use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;

use nearpath_daemon::drain::DrainWatch;
use nearpath_wire::h3;
use nearpath_wire::node_tls::NodeTls;
use tokio::sync::{Barrier, watch};

use crate::request::ListenerZone;

/// A port to serve.
pub struct GatewayListener {
    /// Callers that can reach the port.
    pub zone: ListenerZone,
    /// TLS; `None` for plain text.
    pub tls: Option<ListenerTls>,
    /// Sockets, usually one per thread; see `nearpath_wire::bind`, which also sets inherited
    /// options. With fewer sockets, threads share them; with more, each serves several.
    pub sockets: Vec<TcpListener>,
    /// HTTP/3 on the same port, if enabled.
    pub http3: Option<Http3Listener>,
    /// Calls over QUIC on the same port; only in [`ListenerZone::Node`].
    pub node_quic: Option<NodeQuicListener>,
    /// Signals that another process accepts the port's TCP connections; those that are open go on.
    /// `None`: the port accepts until the drain.
    pub handed_over: Option<DrainWatch>,
}

/// TLS of a port.
#[derive(Clone)]
pub enum ListenerTls {
    /// Clients need no certificate.
    Server(Arc<rustls::ServerConfig>),
    /// Clients are other nodes. The channel brings renewals of certificates.
    Nodes(watch::Receiver<Arc<NodeTls>>),
}

impl ListenerTls {
    /// Returns the configuration for a new connection.
    pub(super) fn server_config(&self) -> Arc<rustls::ServerConfig> {
        match self {
            Self::Server(config) => config.clone(),
            Self::Nodes(tls) => tls.borrow().tls_server_config().clone(),
        }
    }
}

/// Calls from other nodes over QUIC. Calls to other nodes come from the same sockets.
pub struct NodeQuicListener {
    /// One socket per thread, in binding order with the program of `routing` attached, or a single
    /// socket.
    pub sockets: Vec<UdpSocket>,
    /// Steers packets to the thread of their connection.
    pub routing: h3::CidRouting,
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
