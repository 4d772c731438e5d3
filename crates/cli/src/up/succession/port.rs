//! The port of HTTP/3 and the processes that serve it at the same time.
//!
//! All its sockets stay open in every process, because the kernel numbers them by their order ([`nearpath_wire::h3::Steering`]). A process reads its
//! own part; the parts of those that have ended it reads only to tell who still writes there that the connection is over.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use nearpath_kernel::reuseport;
use nearpath_wire::h3::{self, PARTS, Site, Steering};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;

use super::again;

/// A process, and its part of the sockets.
#[derive(Debug)]
struct Member {
    number: usize,
    process: OwnedFd,
    sockets: Vec<UdpSocket>,
}

/// See the module.
#[derive(Debug)]
pub(in crate::up) struct Port {
    site: Site,
    members: Vec<Member>,
    /// Those who wait for the end of others, and then answer for them.
    mourners: JoinSet<()>,
}

/// What a successor is told.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::up) struct Told {
    pub(super) addr: SocketAddr,
    secret: u32,
    mine: usize,
    parts: [(u32, u32); PARTS],
}

impl Port {
    /// Of the first process.
    pub(in crate::up) fn first(site: Site, sockets: &[UdpSocket]) -> io::Result<Self> {
        let me =
            Member::me(site.steering().mine(), sockets.iter().map(UdpSocket::try_clone).collect::<io::Result<_>>()?)?;
        Ok(Self { site, members: vec![me], mourners: JoinSet::new() })
    }

    /// Of a process that comes after others, and its own sockets. It gets no packets before [`Port::steer`].
    pub(in crate::up) fn next(site: Site, told: &Told, fds: Vec<OwnedFd>) -> io::Result<(Self, Vec<UdpSocket>)> {
        let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "what was told of its port makes no sense");
        let before = h3::Told { secret: told.secret, mine: told.mine, parts: told.parts };
        let before = Steering::heard(&before).ok_or_else(nonsense)?;
        let mut members = members(&before, fds).ok_or_else(nonsense)?;
        let ended: Vec<_> = members.iter().filter(|one| one.has_ended()).map(|one| one.number).collect();
        let too_many = || io::Error::other("too many processes are still ending on it: wait for their end");
        let steering = before.next(&ended, site.steering().threads()).ok_or_else(too_many)?;
        let mine = members.iter().position(|one| one.number == steering.mine());
        let sockets = match mine.map(|at| members.swap_remove(at)) {
            Some(ended) => ended.sockets,
            None => nearpath_wire::bind::more_datagrams(told.addr, steering.threads())?,
        };
        members
            .push(Member::me(steering.mine(), sockets.iter().map(UdpSocket::try_clone).collect::<io::Result<_>>()?)?);
        Ok((Self { site: site.steered(steering), members, mourners: JoinSet::new() }, sockets))
    }

    /// The port as it is served: with this process's part in its connections' ids.
    pub(in crate::up) fn site(&self) -> &Site {
        &self.site
    }

    /// Leads newcomers to this process, and everybody else to the process that has their connection.
    ///
    /// # Errors
    /// When the kernel does not take the program.
    pub(in crate::up) fn steer(&self) -> io::Result<()> {
        let any = self.members.iter().find_map(|one| one.sockets.first()).ok_or(io::ErrorKind::NotFound)?;
        reuseport::steer(any, &self.site.steering().program())
    }

    /// From now on answers for the others when they have ended. Must run inside a tokio runtime.
    pub(in crate::up) fn mourn(&mut self) {
        for other in self.members.iter().filter(|one| one.number != self.site.steering().mine()) {
            match other.again() {
                Ok(other) => drop(self.mourners.spawn(other.mourned(self.site.clone()))),
                Err(error) => tracing::warn!(%error, "nobody will answer for a process that ends"),
            }
        }
    }

    /// Leaves the sockets of the others alone: a successor may need them.
    pub(in crate::up) fn rest(&mut self) {
        self.mourners = JoinSet::new(); // those in the old one end
    }

    /// For a successor, with the descriptors in the order of the members: process, then sockets.
    pub(super) fn told(&self) -> io::Result<(Told, Vec<OwnedFd>)> {
        let first = self.members.iter().find_map(|one| one.sockets.first()).ok_or(io::ErrorKind::NotFound)?;
        let h3::Told { secret, mine, parts } = self.site.steering().told();
        let told = Told { addr: first.local_addr()?, secret, mine, parts };
        let mut fds = Vec::new();
        for (number, _) in self.site.steering().parts() {
            let member =
                self.members.iter().find(|one| one.number == number).ok_or(io::ErrorKind::NotFound)?.again()?;
            fds.push(member.process);
            fds.extend(member.sockets.into_iter().map(OwnedFd::from));
        }
        Ok((told, fds))
    }
}

fn members(steering: &Steering, fds: Vec<OwnedFd>) -> Option<Vec<Member>> {
    let mut fds = fds.into_iter();
    let members = steering.parts().map(|(number, part)| {
        let process = fds.next()?;
        let sockets: Vec<_> = fds.by_ref().take(part.sockets().len()).map(UdpSocket::from).collect();
        (sockets.len() == part.sockets().len()).then_some(Member { number, process, sockets })
    });
    members.collect()
}

impl Member {
    fn me(number: usize, sockets: Vec<UdpSocket>) -> io::Result<Self> {
        Ok(Self { number, process: pidfd_open(getpid(), PidfdFlags::empty())?, sockets })
    }

    fn again(&self) -> io::Result<Self> {
        let sockets = self.sockets.iter().map(UdpSocket::try_clone).collect::<io::Result<_>>()?;
        Ok(Self { number: self.number, process: again(self.process.as_fd())?, sockets })
    }

    /// A pidfd is readable from its process's end on (pidfd_open(2)).
    fn has_ended(&self) -> bool {
        let mut process = [PollFd::new(&self.process, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut process, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    async fn mourned(self, site: Site) {
        #[expect(deprecated, reason = "its successor is unsafe for descriptors of unknown safety; this one is owned")]
        let Ok(process) = AsyncFd::new(self.process) else { return };
        if process.readable().await.is_err() {
            return;
        }
        tracing::debug!(part = self.number, "the process that was taken over from has ended");
        let ends: Vec<_> = self.sockets.into_iter().map(|socket| site.mourn(socket)).collect();
        std::future::pending::<()>().await;
        drop(ends);
    }
}
