//! What a process leaves to its successor: the sockets that others connect to.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::getsockname;
use serde::{Deserialize, Serialize};

use super::port::{Port, Told};
use super::{again, packet};

/// What is said differently from one version to the next has another number.
const VERSION: u32 = 1;

/// Which option of `nearpath up` opened a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::up) enum Name {
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
}

/// See the module.
#[derive(Debug, Default)]
pub(in crate::up) struct Estate {
    sockets: Vec<(Name, Vec<OwnedFd>)>,
    /// That of HTTP/3.
    pub(in crate::up) port: Option<Port>,
    /// HTTP/3 is served, but the kernel does not steer its packets.
    pub(in crate::up) unsteered: bool,
    /// What the process before told of its port; taken when the certificate is there to go on with it.
    told: Option<(Told, Vec<OwnedFd>)>,
}

#[derive(Serialize, Deserialize)]
struct Offer {
    version: u32,
    sockets: Vec<(Name, usize)>,
    port: Option<Told>,
    unsteered: bool,
}

impl Estate {
    /// Adds sockets; the estate keeps them open with descriptors of its own.
    fn keep(&mut self, name: Name, sockets: &[impl AsFd]) -> io::Result<()> {
        self.sockets.push((name, sockets.iter().map(again).collect::<io::Result<_>>()?));
        Ok(())
    }

    /// Sockets that the process before opened for the same option on the same address; none: open them.
    fn take<S: From<OwnedFd>>(&mut self, name: Name, addr: SocketAddr) -> Vec<S> {
        let same =
            |socket: &OwnedFd| getsockname(socket).ok().and_then(|at| SocketAddr::try_from(at).ok()) == Some(addr);
        let found = self.sockets.iter().position(|(known, all)| *known == name && all.iter().all(same));
        found.map(|at| self.sockets.swap_remove(at).1.into_iter().map(S::from).collect()).unwrap_or_default()
    }

    /// Sockets of the process before or, if it had none, newly opened ones; `kept` keeps them for the process after.
    pub(in crate::up) fn all<S: From<OwnedFd> + AsFd>(
        &mut self,
        name: Name,
        addr: SocketAddr,
        kept: &mut Self,
        open: impl FnOnce() -> io::Result<Vec<S>>,
    ) -> io::Result<Vec<S>> {
        let inherited = self.take(name, addr);
        let sockets = if inherited.is_empty() { open()? } else { inherited };
        kept.keep(name, &sockets)?;
        Ok(sockets)
    }

    /// The same with one socket.
    pub(in crate::up) fn one<S: From<OwnedFd> + AsFd>(
        &mut self,
        name: Name,
        addr: SocketAddr,
        kept: &mut Self,
        open: impl FnOnce() -> io::Result<S>,
    ) -> io::Result<S> {
        let mut all = self.all(name, addr, kept, || open().map(|socket| vec![socket]))?;
        all.pop().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// What was told of the port of HTTP/3 on this address.
    pub(in crate::up) fn told(&mut self, addr: SocketAddr) -> Option<(Told, Vec<OwnedFd>)> {
        self.told.take_if(|(told, _)| told.addr == addr)
    }

    /// Tells a successor all of it.
    pub(super) fn send(&self, socket: impl AsFd) -> io::Result<()> {
        let sockets = self.sockets.iter().map(|(name, all)| (*name, all.len())).collect();
        let port = self.port.as_ref().map(Port::told).transpose()?;
        let (port, at_port) = port.unzip();
        let offer = Offer { version: VERSION, sockets, port, unsteered: self.unsteered };
        let at_port = at_port.unwrap_or_default();
        let all = self.sockets.iter().flat_map(|(_, all)| all).chain(&at_port).map(AsFd::as_fd);
        packet::send(socket, &offer, &all.collect::<Vec<_>>())
    }

    pub(super) fn receive(socket: impl AsFd) -> io::Result<Self> {
        let (offer, fds): (Offer, _) = packet::receive(socket)?;
        if offer.version != VERSION {
            let text =
                format!("it hands over as version {} does, this one as {VERSION}: stop it, then start", offer.version);
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let mut fds = fds.into_iter();
        let sockets =
            offer.sockets.into_iter().map(|(name, count)| (name, fds.by_ref().take(count).collect())).collect();
        let told = offer.port.map(|told| (told, fds.collect()));
        Ok(Self { sockets, port: None, unsteered: offer.unsteered, told })
    }
}
