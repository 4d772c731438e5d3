//! The sockets that one process passes to the next.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::getsockname;
use serde::{Deserialize, Serialize};

use super::udp_port::{UdpPort, UdpPortState};
use super::{duplicate, message};

/// Version of the messages; every change of their meaning needs another number.
const PROTOCOL_VERSION: u32 = 1;

/// The option of `nearpath up` that opened a socket. Variant names are part of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SocketName {
    /// `--listen`.
    Plain,
    /// `--tls-listen`.
    Tls,
    /// `--admin-listen`.
    Admin,
    /// `--mqtt-listen`.
    Mqtt,
    /// `--coap-listen`.
    Coap,
    /// `--node-listen`.
    Node,
}

/// A UDP port as the old process sent it.
type ReceivedPort = (UdpPortState, Vec<OwnedFd>);

/// Sockets inherited from an old process, or kept for a successor.
#[derive(Debug, Default)]
pub(crate) struct InheritedSockets {
    sockets: Vec<(SocketName, Vec<OwnedFd>)>,
    /// The port of HTTP/3, kept for a successor.
    pub(crate) http3_port: Option<UdpPort>,
    /// The UDP port for other nodes, kept for a successor.
    pub(crate) node_port: Option<UdpPort>,
    /// QUIC is served, but the kernel does not steer its packets.
    pub(crate) unsteered: bool,
    /// The old process's port of HTTP/3 until a certificate is loaded to serve it with.
    received_http3: Option<ReceivedPort>,
    /// The old process's UDP port for other nodes, likewise.
    received_node: Option<ReceivedPort>,
}

/// The message that precedes the descriptors; its field names are part of the protocol.
#[derive(Serialize, Deserialize)]
struct SocketOffer {
    version: u32,
    sockets: Vec<(SocketName, usize)>,
    port: Option<UdpPortState>,
    unsteered: bool,
    /// Absent from older releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node_port: Option<UdpPortState>,
}

impl InheritedSockets {
    /// Keeps duplicates, so that the originals may be closed.
    fn keep(&mut self, name: SocketName, sockets: &[impl AsFd]) -> io::Result<()> {
        self.sockets.push((
            name,
            sockets.iter().map(duplicate).collect::<io::Result<_>>()?,
        ));
        Ok(())
    }

    /// Removes the sockets that the same option opened on the same address.
    fn take<S: From<OwnedFd>>(&mut self, name: SocketName, addr: SocketAddr) -> Vec<S> {
        // The kernel is asked: an option may have changed its address since the old process began.
        let same_addr = |socket: &OwnedFd| {
            getsockname(socket)
                .ok()
                .and_then(|at| SocketAddr::try_from(at).ok())
                // Port 0 matches nothing, so such a listener gets a new port.
                == Some(addr)
        };
        let found = self
            .sockets
            .iter()
            .position(|(known, all)| *known == name && all.iter().all(same_addr));
        found
            .map(|at| {
                self.sockets
                    .swap_remove(at)
                    .1
                    .into_iter()
                    .map(S::from)
                    .collect()
            })
            .unwrap_or_default()
    }

    /// Takes inherited sockets, or opens new ones where there are none; `for_successor` keeps
    /// duplicates.
    pub(crate) fn take_or_open<S: From<OwnedFd> + AsFd>(
        &mut self,
        name: SocketName,
        addr: SocketAddr,
        for_successor: &mut Self,
        open: impl FnOnce() -> io::Result<Vec<S>>,
    ) -> io::Result<Vec<S>> {
        let inherited = self.take(name, addr);
        let sockets = if inherited.is_empty() {
            open()?
        } else {
            inherited
        };
        for_successor.keep(name, &sockets)?;
        Ok(sockets)
    }

    /// [`Self::take_or_open`] for an option that opens one socket.
    pub(crate) fn take_or_open_one<S: From<OwnedFd> + AsFd>(
        &mut self,
        name: SocketName,
        addr: SocketAddr,
        for_successor: &mut Self,
        open: impl FnOnce() -> io::Result<S>,
    ) -> io::Result<S> {
        let mut sockets = self.take_or_open(name, addr, for_successor, || {
            open().map(|socket| vec![socket])
        })?;
        sockets.pop().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Takes the old process's port of HTTP/3 if it is on this address.
    pub(crate) fn take_http3_port(&mut self, addr: SocketAddr) -> Option<ReceivedPort> {
        self.received_http3.take_if(|(state, _)| state.addr == addr)
    }

    /// Takes the old process's UDP port for other nodes if it is on this address.
    pub(crate) fn take_node_port(&mut self, addr: SocketAddr) -> Option<ReceivedPort> {
        self.received_node.take_if(|(state, _)| state.addr == addr)
    }

    /// The UDP ports that are kept for a successor.
    pub(crate) fn udp_ports(&mut self) -> impl Iterator<Item = &mut UdpPort> {
        self.http3_port.iter_mut().chain(&mut self.node_port)
    }

    /// Sends all sockets to a successor.
    pub(super) fn send(&self, socket: impl AsFd) -> io::Result<()> {
        let sockets = self
            .sockets
            .iter()
            .map(|(name, all)| (*name, all.len()))
            .collect();
        let state_of = |port: &Option<UdpPort>| port.as_ref().map(UdpPort::state).transpose();
        let (port, http3_fds) = state_of(&self.http3_port)?.unzip();
        let (node_port, node_fds) = state_of(&self.node_port)?.unzip();
        let offer = SocketOffer {
            version: PROTOCOL_VERSION,
            sockets,
            port,
            unsteered: self.unsteered,
            node_port,
        };
        // Owned until the message is sent: `as_fd` below only borrows them.
        let port_fds: Vec<_> = http3_fds.into_iter().chain(node_fds).flatten().collect();
        let all = self
            .sockets
            .iter()
            .flat_map(|(_, all)| all)
            .chain(&port_fds)
            .map(AsFd::as_fd);
        message::send(socket, &offer, &all.collect::<Vec<_>>())
    }

    pub(super) fn receive(socket: impl AsFd) -> io::Result<Self> {
        let (offer, fds): (SocketOffer, _) = message::receive(socket)?;
        // Returning closes all received descriptors; the old process serves on.
        if offer.version != PROTOCOL_VERSION {
            let text = format!(
                "the running process uses handover protocol {}, this one {PROTOCOL_VERSION}: stop it, then start",
                offer.version
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let mut fds = fds.into_iter();
        let sockets = offer
            .sockets
            .into_iter()
            .map(|(name, count)| (name, fds.by_ref().take(count).collect()))
            .collect();
        // Descriptors of the UDP ports come after all others.
        let mut receive_port = |state: UdpPortState| {
            let fds = fds.by_ref().take(state.descriptor_count()).collect();
            (state, fds)
        };
        let received_http3 = offer.port.map(&mut receive_port);
        let received_node = offer.node_port.map(&mut receive_port);
        Ok(Self {
            sockets,
            unsteered: offer.unsteered,
            received_http3,
            received_node,
            ..Self::default()
        })
    }
}
