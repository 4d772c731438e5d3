//! One connection: what is still to be written on it, and what has been read of an answer.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with,
    sockopt,
};

use super::answer::Shape;

/// New bytes are told once: a caller reads all there is, so nothing has to be looked at twice.
const NEWS: EventFlags = EventFlags::IN
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);

/// An open connection, or one that is being opened.
pub(super) struct Line {
    socket: OwnedFd,
    /// What the kernel did not take yet of a request.
    unsent: Vec<u8>,
    /// The beginning of an answer of which the rest has not come.
    begun: Vec<u8>,
}

/// What came.
pub(super) enum Heard<'a> {
    /// Not yet a whole answer.
    Part,
    /// An answer, head and body.
    Whole(Shape, &'a [u8]),
}

impl Line {
    /// Does not wait until it is open: over loopback it is, as a rule, when this returns. News of it bear `number`.
    pub(super) fn open(epoll: &OwnedFd, addr: SocketAddr, number: u64) -> io::Result<Self> {
        let family = if addr.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match connect(&socket, &addr) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        epoll::add(epoll, &socket, EventData::new_u64(number), NEWS)?;
        Ok(Self {
            socket,
            unsent: Vec::new(),
            begun: Vec::new(),
        })
    }

    /// Sends a request, or keeps what cannot be sent yet until [`Line::send_rest`].
    pub(super) fn ask(&mut self, epoll: &OwnedFd, number: u64, request: &[u8]) -> io::Result<()> {
        let sent = self.send(request)?;
        if sent < request.len() {
            self.unsent.extend_from_slice(&request[sent..]);
            epoll::modify(
                epoll,
                &self.socket,
                EventData::new_u64(number),
                NEWS | EventFlags::OUT,
            )?;
        }
        Ok(())
    }

    /// Goes on with a request that was not sent as a whole.
    pub(super) fn send_rest(&mut self, epoll: &OwnedFd, number: u64) -> io::Result<()> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        let sent = self.send(&self.unsent)?;
        self.unsent.drain(..sent);
        if self.unsent.is_empty() {
            epoll::modify(epoll, &self.socket, EventData::new_u64(number), NEWS)?;
        }
        Ok(())
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match send(self.socket.as_fd(), bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => Ok(sent),
            Err(Errno::AGAIN) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads what there is. Most answers come whole, and are looked at in `scratch`, which stays in the processor's cache.
    pub(super) fn read<'a>(&'a mut self, scratch: &'a mut [u8]) -> io::Result<Heard<'a>> {
        loop {
            let read = match recv(self.socket.as_fd(), &mut *scratch, RecvFlags::empty()) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((read, _)) => read,
                Err(Errno::AGAIN) => return Ok(Heard::Part),
                Err(error) => return Err(error.into()),
            };
            if self.begun.is_empty()
                && let Some(shape) = whole(&scratch[..read])?
            {
                return Ok(Heard::Whole(shape, &scratch[..read]));
            }
            self.begun.extend_from_slice(&scratch[..read]);
            if let Some(shape) = whole(&self.begun)? {
                return Ok(Heard::Whole(shape, &self.begun));
            }
            if read < scratch.len() {
                return Ok(Heard::Part); // there is no more; more is news
            }
        }
    }

    /// The answer has been looked at: the next one begins.
    pub(super) fn forget(&mut self) {
        self.begun.clear();
    }
}

/// A whole answer and nothing behind it: nobody asked for more.
fn whole(bytes: &[u8]) -> io::Result<Option<Shape>> {
    let Some(shape) = Shape::of(bytes)? else {
        return Ok(None);
    };
    match bytes.len().cmp(&shape.whole()) {
        std::cmp::Ordering::Less => Ok(None),
        std::cmp::Ordering::Equal => Ok(Some(shape)),
        std::cmp::Ordering::Greater => Err(io::ErrorKind::InvalidData.into()),
    }
}
