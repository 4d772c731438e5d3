//! The port for other nodes: TCP for states, long bodies and upgrades, UDP for calls.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;

use nearpath_gateway::{GatewayListener, ListenerTls, ListenerZone, NodeQuicListener};
use nearpath_kernel::reuseport;
use nearpath_wire::h3::CidRouting;
use nearpath_wire::node_tls::{NodeTls, POLL_INTERVAL, watch_node_tls};
use nearpath_wire::sockets;
use tokio::sync::watch;

use crate::error::StartError;
use crate::settings::PeerSettings;

/// Option of the address.
const LISTEN_OPTION: &str = "--node-listen";
/// Option of the certificates.
const CERTIFICATES_OPTION: &str = "--node-certificates";

/// Sockets and certificates of the port.
pub(crate) struct PeerPort {
    tcp: Vec<TcpListener>,
    udp: Vec<UdpSocket>,
    routing: CidRouting,
    /// Certificates, and their renewals.
    pub(crate) tls: watch::Receiver<Arc<NodeTls>>,
}

impl PeerPort {
    /// Opens the port, with one socket of each kind for each of `threads`. Must run inside a runtime.
    ///
    /// # Errors
    /// When the certificates cannot be used or are another node's, or the port is in use.
    pub(crate) fn open(settings: &PeerSettings, threads: usize) -> Result<Self, StartError> {
        let tls = watch_node_tls(&settings.certificates, POLL_INTERVAL)
            .map_err(StartError::component(CERTIFICATES_OPTION))?;
        let own = tls.borrow().credentials().node().clone();
        if own != settings.node {
            let folder = settings.certificates.display();
            let why = format!(
                "{folder} has the certificate of node {own}, and this is node {}: \
                 copy the folder that `nearpath ca issue {}` made",
                settings.node, settings.node
            );
            return Err(StartError::component(CERTIFICATES_OPTION)(why));
        }
        let tcp = sockets::bind_tcp(settings.listen, threads)
            .map_err(StartError::listen(LISTEN_OPTION, settings.listen))?;
        let addr = tcp
            .first()
            .and_then(|socket| socket.local_addr().ok())
            .unwrap_or(settings.listen);
        let (udp, routing) = open_datagrams(addr, threads)?;
        Ok(Self {
            tcp,
            udp,
            routing,
            tls,
        })
    }

    /// Returns the listener for the gateway.
    pub(crate) fn into_listener(self) -> GatewayListener {
        GatewayListener {
            zone: ListenerZone::Node,
            tls: Some(ListenerTls::Nodes(self.tls)),
            sockets: self.tcp,
            http3: None,
            node_quic: Some(NodeQuicListener {
                sockets: self.udp,
                routing: self.routing,
            }),
        }
    }
}

/// Opens the UDP sockets, with packets steered to the thread of their connection.
fn open_datagrams(
    addr: SocketAddr,
    threads: usize,
) -> Result<(Vec<UdpSocket>, CidRouting), StartError> {
    let listen = || StartError::listen(LISTEN_OPTION, addr);
    let mut udp = sockets::bind_udp(addr, threads).map_err(listen())?;
    let routing = CidRouting::new(threads).ok_or_else(|| {
        StartError::component(LISTEN_OPTION)("the system's random number generator failed")
    })?;
    let steered = match udp.first() {
        Some(first) => reuseport::attach_steering_program(first, &routing.bpf_program()),
        None => Ok(()),
    };
    if let Err(error) = steered {
        tracing::warn!(%error, "nodes: the kernel cannot steer packets to threads; one thread serves QUIC, the others use TLS");
        udp.truncate(1);
    }
    Ok((udp, routing))
}
