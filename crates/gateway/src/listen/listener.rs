//! The ports that the gateway is to serve.

use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;

use nearpath_wire::h3;
use tokio::sync::Barrier;

use crate::request::ListenerZone;

/// A port to serve.
pub struct GatewayListener {
    /// Who may reach it.
    pub zone: ListenerZone,
    /// With TLS, if set.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// One socket a thread, see `nearpath_wire::bind`, which also sets what their connections inherit. With fewer, threads
    /// share them; with more, each serves several.
    pub sockets: Vec<TcpListener>,
    /// With HTTP/3 on the same port, if set.
    pub http3: Option<Http3Listener>,
}

/// HTTP/3 beside a listener with TLS.
pub struct Http3Listener {
    pub(super) server_config: h3::Http3ServerConfig,
    pub(crate) sockets: Vec<UdpSocket>,
    /// Where threads meet when they have no connection left: until then each tells newcomers that they come too late.
    pub(super) drained: Arc<Barrier>,
}

impl Http3Listener {
    /// With one socket a thread, in the order in which they were bound, and with [`h3::CidRouting::program`] attached to them; or with one
    /// alone.
    pub fn new(server_config: h3::Http3ServerConfig, sockets: Vec<UdpSocket>) -> Self {
        let drained = Arc::new(Barrier::new(sockets.len()));
        Self {
            server_config: server_config,
            sockets,
            drained: drained,
        }
    }
}
