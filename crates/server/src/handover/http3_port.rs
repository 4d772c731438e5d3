//! The UDP port of HTTP/3 while several processes serve it.
//!
//! All its sockets stay open in every process, because the kernel numbers them by their order
//! ([`nearpath_wire::h3::CidRouting`]). A process reads its own sockets. It reads those of ended
//! processes only to reset connections that still send there.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use nearpath_kernel::reuseport;
use nearpath_wire::h3::{self, CidRouting, Http3ServerConfig, MAX_PARTS};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;

use super::duplicate;

/// A process and its sockets.
#[derive(Debug)]
struct PortMember {
    number: usize,
    process: OwnedFd,
    sockets: Vec<UdpSocket>,
}

/// The port as one of its processes sees it.
#[derive(Debug)]
pub(crate) struct Http3Port {
    site: Http3ServerConfig,
    members: Vec<PortMember>,
    /// One task per other process: waits for its end, then resets its connections.
    resets: JoinSet<()>,
}

/// The description that a successor receives; its serialized field names are part of the handover
/// protocol.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Http3PortState {
    pub(super) addr: SocketAddr,
    secret: u32,
    #[serde(rename = "mine")]
    own_part: usize,
    parts: [(u32, u32); MAX_PARTS],
}

impl Http3Port {
    /// Creates the port of the first process.
    pub(crate) fn new(site: Http3ServerConfig, sockets: &[UdpSocket]) -> io::Result<Self> {
        let this_process = PortMember::this_process(site.routing().own_part(), sockets)?;
        Ok(Self {
            site,
            members: vec![this_process],
            resets: JoinSet::new(),
        })
    }

    /// Joins the port of earlier processes. This process gets no packets before
    /// [`Self::steer_to_self`].
    pub(crate) fn inherit(
        site: Http3ServerConfig,
        state: &Http3PortState,
        fds: Vec<OwnedFd>,
    ) -> io::Result<(Self, Vec<UdpSocket>)> {
        let invalid = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "the old process sent an invalid HTTP/3 port",
            )
        };
        let before = h3::CidRoutingState {
            secret: state.secret,
            own_part: state.own_part,
            parts: state.parts,
        };
        // The message comes from another version, perhaps: its numbers are checked before use.
        let before = CidRouting::from_state(&before).ok_or_else(invalid)?;
        let mut members = read_members(&before, fds).ok_or_else(invalid)?;
        let ended: Vec<_> = members
            .iter()
            .filter(|member| member.has_ended())
            .map(|member| member.number)
            .collect();
        let too_many =
            || io::Error::other("too many old processes are still draining: wait until they exit");
        let steering = before
            .next_process(&ended, site.routing().thread_count())
            .ok_or_else(too_many)?;
        // Sockets of an ended process are reused in place: closing them would renumber the others.
        let reused = members
            .iter()
            .position(|member| member.number == steering.own_part());
        let sockets = match reused.map(|at| members.swap_remove(at)) {
            Some(ended) => ended.sockets,
            None => nearpath_wire::sockets::bind_more_udp(state.addr, steering.thread_count())?,
        };
        // Last: the position in the list has no meaning, the part's number has.
        members.push(PortMember::this_process(steering.own_part(), &sockets)?);
        Ok((
            Self {
                site: site.with_routing(steering),
                members,
                resets: JoinSet::new(),
            },
            sockets,
        ))
    }

    /// The server configuration whose connection ids lead to this process.
    pub(crate) fn site(&self) -> &Http3ServerConfig {
        &self.site
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
        reuseport::attach_steering_program(any, &self.site.routing().bpf_program())
    }

    /// Resets connections of the other processes once these have ended. Must run inside a tokio
    /// runtime.
    pub(crate) fn reset_orphans(&mut self) {
        for member in self
            .members
            .iter()
            .filter(|member| member.number != self.site.routing().own_part())
        {
            match member.try_clone() {
                Ok(member) => drop(self.resets.spawn(member.reset_after_end(self.site.clone()))),
                Err(error) => {
                    tracing::warn!(%error, "HTTP/3: connections of an exiting process will not be reset")
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
    pub(super) fn state(&self) -> io::Result<(Http3PortState, Vec<OwnedFd>)> {
        let first = self
            .members
            .iter()
            .find_map(|member| member.sockets.first())
            .ok_or(io::ErrorKind::NotFound)?;
        let h3::CidRoutingState {
            secret,
            own_part: mine,
            parts,
        } = self.site.routing().to_state();
        let state = Http3PortState {
            addr: first.local_addr()?,
            secret,
            own_part: mine,
            parts,
        };
        let mut fds = Vec::new();
        // In the order of parts, which is the order in which `read_members` consumes them.
        for (number, _) in self.site.routing().parts() {
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
    async fn reset_after_end(self, site: Http3ServerConfig) {
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
        tracing::debug!(part = self.number, "HTTP/3: the old process has exited");
        let resets: Vec<_> = self
            .sockets
            .into_iter()
            .map(|socket| site.reset_stale_connections(socket))
            .collect();
        // The sockets keep receiving packets of the ended process until a successor reuses them.
        std::future::pending::<()>().await;
        drop(resets);
    }
}
