//! A UDP port of QUIC while several processes serve it: that of HTTP/3, or that for other nodes.
//!
//! All its sockets stay open in every process, because the kernel numbers them by their order
//! ([`nearpath_wire::h3::CidRouting`]). A process reads its own sockets. It reads those of ended
//! processes only to reset connections that still send there.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nearpath_kernel::reuseport;
use nearpath_wire::h3::{self, CidRouting, Http3ServerConfig, MAX_PARTS};
use nearpath_wire::node_tls::NodeTls;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::duplicate;

/// A process and its sockets.
#[derive(Debug)]
struct PortMember {
    number: usize,
    process: OwnedFd,
    sockets: Vec<UdpSocket>,
}

/// Protocol of a port, with the keys of its stateless resets.
#[derive(Debug, Clone)]
pub(crate) enum UdpProtocol {
    /// HTTP/3 for clients.
    Http3(Box<Http3ServerConfig>),
    /// Calls between nodes.
    Nodes(watch::Receiver<Arc<NodeTls>>),
}

impl UdpProtocol {
    /// Routing of a port of this protocol.
    fn fit_routing(&self, routing: CidRouting) -> CidRouting {
        match self {
            Self::Http3(_) => routing,
            Self::Nodes(_) => routing.dialed_from(),
        }
    }

    /// Resets connections that still send to `socket`, whose process has ended, until the endpoint is
    /// dropped.
    fn reset_stale_connections(
        &self,
        routing: CidRouting,
        socket: UdpSocket,
    ) -> io::Result<impl Send + use<>> {
        match self {
            Self::Http3(config) => config.reset_stale_connections(socket),
            Self::Nodes(tls) => tls.borrow().reset_stale_connections(routing, socket),
        }
    }
}

/// The port as one of its processes sees it.
#[derive(Debug)]
pub(crate) struct UdpPort {
    protocol: UdpProtocol,
    routing: CidRouting,
    members: Vec<PortMember>,
    /// One task per other process: waits for its end, then resets its connections.
    resets: JoinSet<()>,
}

/// The description that a successor receives; its serialized field names are part of the handover
/// protocol.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct UdpPortState {
    pub(super) addr: SocketAddr,
    secret: u32,
    #[serde(rename = "mine")]
    own_part: usize,
    parts: [(u32, u32); MAX_PARTS],
}

impl UdpPortState {
    /// Routing of the process that sent the state; `None`: it is invalid.
    fn routing(&self) -> Option<CidRouting> {
        CidRouting::from_state(&h3::CidRoutingState {
            secret: self.secret,
            own_part: self.own_part,
            parts: self.parts,
        })
    }

    /// Number of descriptors that come with the state: the process of each part, and its sockets.
    pub(super) fn descriptor_count(&self) -> usize {
        let routing = self.routing();
        routing.map_or(0, |routing| {
            routing.socket_count() + routing.parts().count()
        })
    }
}

impl UdpPort {
    /// Creates the port of the first process.
    pub(crate) fn new(
        protocol: UdpProtocol,
        routing: CidRouting,
        sockets: &[UdpSocket],
    ) -> io::Result<Self> {
        let routing = protocol.fit_routing(routing);
        let this_process = PortMember::this_process(routing.own_part(), sockets)?;
        Ok(Self {
            protocol,
            routing,
            members: vec![this_process],
            resets: JoinSet::new(),
        })
    }

    /// Joins the port of earlier processes with `threads` threads at most. This process gets no packets
    /// before [`Self::steer_to_self`].
    pub(crate) fn inherit(
        protocol: UdpProtocol,
        threads: usize,
        (state, fds): (UdpPortState, Vec<OwnedFd>),
    ) -> io::Result<(Self, Vec<UdpSocket>)> {
        let invalid = || {
            let text = "the old process sent an invalid UDP port";
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        // The message comes from another version, perhaps: its numbers are checked before use.
        let before = state.routing().ok_or_else(invalid)?;
        let mut members = read_members(&before, fds).ok_or_else(invalid)?;
        let ended: Vec<_> = members
            .iter()
            .filter(|member| member.has_ended())
            .map(|member| member.number)
            .collect();
        let too_many =
            || io::Error::other("too many old processes are still draining: wait until they exit");
        let routing = before.next_process(&ended, threads).ok_or_else(too_many)?;
        let routing = protocol.fit_routing(routing);
        // Sockets of an ended process are reused in place: closing them would renumber the others.
        let reused = members
            .iter()
            .position(|member| member.number == routing.own_part());
        let sockets = match reused.map(|at| members.swap_remove(at)) {
            Some(ended) => ended.sockets,
            None => nearpath_wire::sockets::bind_more_udp(state.addr, routing.thread_count())?,
        };
        // Last: the position in the list has no meaning, the part's number has.
        members.push(PortMember::this_process(routing.own_part(), &sockets)?);
        let port = Self {
            protocol,
            routing,
            members,
            resets: JoinSet::new(),
        };
        Ok((port, sockets))
    }

    /// Connection ids that lead to this process.
    pub(crate) fn routing(&self) -> CidRouting {
        self.routing
    }

    /// Steers new connections to this process, and packets of others to the process that owns them.
    ///
    /// # Errors
    /// When the kernel refuses the program.
    pub(crate) fn steer_to_self(&self) -> io::Result<()> {
        let any = self
            .members
            .iter()
            .find_map(|member| member.sockets.first())
            .ok_or(io::ErrorKind::NotFound)?;
        reuseport::attach_steering_program(any, &self.routing.bpf_program())
    }

    /// Resets connections of the other processes once these have ended. Must run inside a tokio
    /// runtime.
    pub(crate) fn reset_orphans(&mut self) {
        for member in self
            .members
            .iter()
            .filter(|member| member.number != self.routing.own_part())
        {
            match member.try_clone() {
                Ok(member) => {
                    let resetting = member.reset_after_end(self.protocol.clone(), self.routing);
                    drop(self.resets.spawn(resetting));
                }
                Err(error) => {
                    tracing::warn!(%error, "QUIC: connections of an exiting process will not be reset")
                }
            }
        }
    }

    /// Stops reading the sockets of ended processes: a successor may reuse them.
    pub(crate) fn stop_resets(&mut self) {
        self.resets = JoinSet::new(); // dropping the old set aborts its tasks
    }

    /// The description for a successor, with the descriptors of each member: its process, then its
    /// sockets.
    pub(super) fn state(&self) -> io::Result<(UdpPortState, Vec<OwnedFd>)> {
        let first = self
            .members
            .iter()
            .find_map(|member| member.sockets.first())
            .ok_or(io::ErrorKind::NotFound)?;
        let h3::CidRoutingState {
            secret,
            own_part: mine,
            parts,
        } = self.routing.to_state();
        let state = UdpPortState {
            addr: first.local_addr()?,
            secret,
            own_part: mine,
            parts,
        };
        let mut fds = Vec::new();
        // In the order of parts, which is the order in which `read_members` consumes them.
        for (number, _) in self.routing.parts() {
            let member = self.members.iter().find(|member| member.number == number);
            let member = member.ok_or(io::ErrorKind::NotFound)?.try_clone()?;
            fds.push(member.process);
            fds.extend(member.sockets.into_iter().map(OwnedFd::from));
        }
        Ok((state, fds))
    }
}

fn read_members(steering: &CidRouting, fds: Vec<OwnedFd>) -> Option<Vec<PortMember>> {
    let mut fds = fds.into_iter();
    let members = steering.parts().map(|(number, part)| {
        let process = fds.next()?;
        let sockets: Vec<_> = fds
            .by_ref()
            .take(part.socket_numbers().len())
            .map(UdpSocket::from)
            .collect();
        (sockets.len() == part.socket_numbers().len()).then_some(PortMember {
            number,
            process,
            sockets,
        })
    });
    members.collect()
}

impl PortMember {
    fn this_process(number: usize, sockets: &[UdpSocket]) -> io::Result<Self> {
        let sockets = sockets
            .iter()
            .map(UdpSocket::try_clone)
            .collect::<io::Result<_>>()?;
        Ok(Self {
            number,
            // A pidfd, not a pid: the number may belong to another process by the time it is read.
            process: pidfd_open(getpid(), PidfdFlags::empty())?,
            sockets,
        })
    }

    fn try_clone(&self) -> io::Result<Self> {
        let sockets = self
            .sockets
            .iter()
            .map(UdpSocket::try_clone)
            .collect::<io::Result<_>>()?;
        Ok(Self {
            number: self.number,
            process: duplicate(&self.process)?,
            sockets,
        })
    }

    fn has_ended(&self) -> bool {
        // A pidfd becomes readable when its process ends (pidfd_open(2)).
        let mut process = [PollFd::new(&self.process, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut process, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Waits for the end of the process, then resets its connections until the task is aborted.
    async fn reset_after_end(self, protocol: UdpProtocol, routing: CidRouting) {
        #[expect(
            deprecated,
            reason = "its successor is unsafe for descriptors of unknown safety; this one is owned"
        )]
        let Ok(process) = AsyncFd::new(self.process) else {
            return;
        };
        if process.readable().await.is_err() {
            return;
        }
        tracing::debug!(part = self.number, "QUIC: the old process has exited");
        let resets: Vec<_> = self
            .sockets
            .into_iter()
            .map(|socket| protocol.reset_stale_connections(routing, socket))
            .collect();
        // The sockets keep receiving packets of the ended process until a successor reuses them.
        std::future::pending::<()>().await;
        drop(resets);
    }
}
