//! The port for other nodes: TCP for states, complete requests, long bodies and upgrades, UDP for other
//! calls.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;

use nearpath_daemon::drain::DrainWatch;
use nearpath_gateway::{GatewayListener, ListenerTls, ListenerZone, NodeQuicListener};
use nearpath_types::NodeName;
use nearpath_wire::h3::CidRouting;
use nearpath_wire::node_tls::{NodeTls, POLL_INTERVAL, watch_node_tls};
use nearpath_wire::sockets;
use tokio::sync::watch;

use crate::error::StartError;
use crate::handover::{InheritedSockets, SocketName, UdpPort, UdpProtocol};
use crate::listeners::{check_steered, steer};
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
    /// Opens the port, with one socket of each kind for each of `threads`, or takes it over from an old
    /// process; `for_successor` keeps duplicates. Must run inside a runtime.
    ///
    /// # Errors
    /// When the certificates cannot be used or are another node's, or the port is in use.
    pub(crate) fn open(
        settings: &PeerSettings,
        threads: usize,
        inherited: &mut InheritedSockets,
        for_successor: &mut InheritedSockets,
    ) -> Result<Self, StartError> {
        let tls = watch_node_tls(&settings.certificates, POLL_INTERVAL)
            .map_err(StartError::component(CERTIFICATES_OPTION))?;
        check_name(settings, tls.borrow().credentials().node())?;
        let addr = settings.listen;
        let open = || bind_unshared(addr, threads);
        let tcp = inherited.take_or_open(SocketName::Node, addr, for_successor, open);
        let tcp: Vec<TcpListener> = tcp.map_err(StartError::listen(LISTEN_OPTION, addr))?;
        let bound = tcp.first().and_then(|socket| socket.local_addr().ok());
        let addr = bound.unwrap_or(addr);
        let protocol = UdpProtocol::Nodes(tls.clone());
        let (udp, routing) = open_datagrams(addr, threads, protocol, inherited, for_successor)?;
        Ok(Self {
            tcp,
            udp,
            routing,
            tls,
        })
    }

    /// Returns the listener for the gateway. `handed_over` signals that another process accepts its
    /// connections.
    pub(crate) fn into_listener(self, handed_over: DrainWatch) -> GatewayListener {
        GatewayListener {
            zone: ListenerZone::Node,
            tls: Some(ListenerTls::Nodes(self.tls)),
            sockets: self.tcp,
            http3: None,
            node_quic: Some(NodeQuicListener {
                sockets: self.udp,
                routing: self.routing,
            }),
            handed_over: Some(handed_over),
        }
    }
}

fn check_name(settings: &PeerSettings, own: &NodeName) -> Result<(), StartError> {
    if *own == settings.node {
        return Ok(());
    }
    let folder = settings.certificates.display();
    let why = format!(
        "{folder} has the certificate of node {own}, and this is node {}: \
         copy the folder that `nearpath ca issue {}` made",
        settings.node, settings.node
    );
    Err(StartError::component(CERTIFICATES_OPTION)(why))
}

/// Binds TCP sockets that no other process of this user shares. An old process of a release that does not
/// hand the port over would lose connections to them.
fn bind_unshared(addr: SocketAddr, threads: usize) -> io::Result<Vec<TcpListener>> {
    // Without SO_REUSEPORT, which the sockets below have, the kernel refuses a port in use (socket(7)).
    drop(TcpListener::bind(addr)?);
    sockets::bind_tcp(addr, threads)
}

/// Opens the UDP sockets, or takes them over, with packets steered to the thread of their connection.
fn open_datagrams(
    addr: SocketAddr,
    threads: usize,
    protocol: UdpProtocol,
    inherited: &mut InheritedSockets,
    for_successor: &mut InheritedSockets,
) -> Result<(Vec<UdpSocket>, CidRouting), StartError> {
    let listen = || StartError::listen(LISTEN_OPTION, addr);
    check_steered(inherited)?;
    if let Some(received) = inherited.take_node_port(addr) {
        let inherited = UdpPort::inherit(protocol, threads, received);
        let (port, udp) = inherited.map_err(listen())?;
        let routing = port.routing();
        for_successor.node_port = Some(port);
        return Ok((udp, routing));
    }
    let mut udp = sockets::bind_udp(addr, threads).map_err(listen())?;
    let routing = CidRouting::new(threads).ok_or_else(|| {
        StartError::component(LISTEN_OPTION)("the system's random number generator failed")
    })?;
    let port = UdpPort::new(protocol, routing, &udp).map_err(listen())?;
    let routing = port.routing();
    for_successor.node_port = steer(port, &mut udp, for_successor);
    Ok((udp, routing))
}
