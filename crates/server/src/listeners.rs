//! The gateway's public sockets, opened or inherited from an old process.
//!
//! They belong to the host's network namespace, wherever their threads go. The socket for instances
//! is opened by [`crate::network::Network`].

use std::net::{SocketAddr, UdpSocket};

use nearpath_gateway::{GatewayListener, Http3Listener, ListenerTls, ListenerZone};
use nearpath_wire::{h3, sockets, tls};

use crate::error::StartError;
use crate::handover::{InheritedSockets, SocketName, UdpPort, UdpProtocol};
use crate::settings::{ServerSettings, TlsSettings};

/// Opens or inherits the public listeners; `for_successor` keeps duplicates for a later process.
pub(crate) fn public(
    settings: &ServerSettings,
    inherited: &mut InheritedSockets,
    for_successor: &mut InheritedSockets,
) -> Result<Vec<GatewayListener>, StartError> {
    let addr = settings.listen;
    let open = || sockets::bind_tcp(addr, settings.threads.get());
    let sockets = inherited.take_or_open(SocketName::Plain, addr, for_successor, open);
    let sockets = sockets.map_err(StartError::listen("--listen", addr))?;
    let plain = GatewayListener {
        zone: ListenerZone::Public,
        tls: None,
        sockets,
        http3: None,
        node_quic: None,
        handed_over: None,
    };
    let encrypted = settings
        .tls
        .as_ref()
        .map(|tls| encrypted(settings, tls, inherited, for_successor))
        .transpose()?;
    Ok([Some(plain), encrypted].into_iter().flatten().collect())
}

fn encrypted(
    settings: &ServerSettings,
    tls: &TlsSettings,
    inherited: &mut InheritedSockets,
    for_successor: &mut InheritedSockets,
) -> Result<GatewayListener, StartError> {
    let config = tls::load_config(&tls.cert, &tls.key).map_err(StartError::component("TLS"))?;
    let open = || sockets::bind_tcp(tls.listen, settings.threads.get());
    let sockets = inherited.take_or_open(SocketName::Tls, tls.listen, for_successor, open);
    let sockets = sockets.map_err(StartError::listen("--tls-listen", tls.listen))?;
    // HTTP/3 is advertised on the same port, and with port 0 the kernel has chosen one by now.
    let addr = sockets
        .first()
        .and_then(|socket| socket.local_addr().ok())
        .unwrap_or(tls.listen);
    let http3 = if tls.http3 {
        Some(http3(settings, tls, addr, inherited, for_successor)?)
    } else {
        None
    };
    Ok(GatewayListener {
        zone: ListenerZone::Public,
        tls: Some(ListenerTls::Server(config)),
        sockets,
        http3,
        node_quic: None,
        handed_over: None,
    })
}

fn http3(
    settings: &ServerSettings,
    tls: &TlsSettings,
    addr: SocketAddr,
    inherited: &mut InheritedSockets,
    for_successor: &mut InheritedSockets,
) -> Result<Http3Listener, StartError> {
    let listen = || StartError::listen("HTTP/3 (--http3 off disables it)", addr);
    let threads = settings.threads.get();
    let pair = tls::read_key_pair(&tls.cert, &tls.key).map_err(StartError::component("TLS"))?;
    let site = h3::Http3ServerConfig::new(&pair, &settings.gateway.limits, threads)
        .map_err(StartError::component("HTTP/3"))?;
    check_steered(inherited)?;
    let protocol = UdpProtocol::Http3(Box::new(site.clone()));
    if let Some(received) = inherited.take_http3_port(addr) {
        let (port, sockets) = UdpPort::inherit(protocol, threads, received).map_err(listen())?;
        let site = site.with_routing(port.routing());
        for_successor.http3_port = Some(port);
        return Ok(Http3Listener::new(site, sockets));
    }
    let mut sockets = sockets::bind_udp(addr, threads).map_err(listen())?;
    let port = UdpPort::new(protocol, *site.routing(), &sockets).map_err(listen())?;
    for_successor.http3_port = steer(port, &mut sockets, for_successor);
    Ok(Http3Listener::new(site, sockets))
}

/// Refuses to take QUIC over from a process whose packets the kernel does not steer: it reads all packets
/// through one socket, and two processes cannot share that.
pub(crate) fn check_steered(inherited: &InheritedSockets) -> Result<(), StartError> {
    if inherited.unsteered {
        return Err(StartError::component("--take-over")(
            "the kernel cannot steer QUIC packets to the process that owns their connection: stop the running process, then start",
        ));
    }
    Ok(())
}

/// Steers packets to the thread that owns their connection; where the kernel cannot, one socket
/// receives all of them.
pub(crate) fn steer(
    port: UdpPort,
    sockets: &mut Vec<UdpSocket>,
    for_successor: &mut InheritedSockets,
) -> Option<UdpPort> {
    match port.steer_to_self() {
        Ok(()) => Some(port),
        Err(error) => {
            tracing::warn!(%error, "QUIC: the kernel cannot steer packets to threads; one thread serves it, and --take-over is unavailable");
            // A successor must know: without steering it would take packets of our connections.
            for_successor.unsteered = true;
            sockets.truncate(1);
            None
        }
    }
}
