//! Non-blocking connections with the unsent bytes of a request and the received bytes of a
//! response.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with,
    sockopt,
};

use super::response::ResponseShape;

/// Edge-triggered events: a caller reads all bytes at once.
const CONNECTION_EVENTS: EventFlags = EventFlags::IN
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);

/// An open or opening connection.
pub(super) struct EpollConnection {
    socket: OwnedFd,
    /// Bytes of a request that the kernel has not accepted yet.
    unsent: Vec<u8>,
    /// The first bytes of an incomplete response.
    begun: Vec<u8>,
}

/// Result of a read.
pub(super) enum ReadOutcome<'a> {
    /// The response is incomplete.
    Part,
    /// A response, head and body.
    Whole(ResponseShape, &'a [u8]),
}

impl EpollConnection {
    /// Opens a connection and does not wait for it: over loopback it is usually open on return. Its
    /// events have `number`.
    pub(super) fn open(epoll: &OwnedFd, addr: SocketAddr, number: u64) -> io::Result<Self> {
        let family = if addr.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        // Requests are single writes; Nagle would only delay the rest of large ones.
        sockopt::set_tcp_nodelay(&socket, true)?;
        match connect(&socket, &addr) {
            // A refused connect is reported by the first send or read.
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        epoll::add(
            epoll,
            &socket,
            EventData::new_u64(number),
            CONNECTION_EVENTS,
        )?;
        Ok(Self {
            socket,
            unsent: Vec::new(),
            begun: Vec::new(),
        })
    }

    /// Sends a request, or keeps the unsent bytes until [`EpollConnection::send_rest`].
    pub(super) fn send_request(
        &mut self,
        epoll: &OwnedFd,
        number: u64,
        request: &[u8],
    ) -> io::Result<()> {
        let sent = self.write_some(request)?;
        // OUT is enabled only while bytes are left: a socket is nearly always writable, and each
        // such event costs a wake-up.
        if sent < request.len() {
            self.unsent.extend_from_slice(&request[sent..]);
            epoll::modify(
                epoll,
                &self.socket,
                EventData::new_u64(number),
                CONNECTION_EVENTS | EventFlags::OUT,
            )?;
        }
        Ok(())
    }

    /// Continues a partially sent request.
    pub(super) fn send_rest(&mut self, epoll: &OwnedFd, number: u64) -> io::Result<()> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        let sent = self.write_some(&self.unsent)?;
        // Drained rather than indexed: rests are rare and small.
        self.unsent.drain(..sent);
        if self.unsent.is_empty() {
            epoll::modify(
                epoll,
                &self.socket,
                EventData::new_u64(number),
                CONNECTION_EVENTS,
            )?;
        }
        Ok(())
    }

    fn write_some(&self, bytes: &[u8]) -> io::Result<usize> {
        match send(self.socket.as_fd(), bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => Ok(sent),
            // A full buffer is no failure; the rest goes with the next OUT event.
            Err(Errno::AGAIN) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the available bytes. Most responses arrive whole and are parsed in `scratch`, which
    /// stays in the processor's cache.
    pub(super) fn read_response<'a>(
        &'a mut self,
        scratch: &'a mut [u8],
    ) -> io::Result<ReadOutcome<'a>> {
        loop {
            let read = match recv(self.socket.as_fd(), &mut *scratch, RecvFlags::empty()) {
                // Every answer has a content-length, so an end of the stream is always premature.
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((read, _)) => read,
                Err(Errno::AGAIN) => return Ok(ReadOutcome::Part),
                Err(error) => return Err(error.into()),
            };
            if self.begun.is_empty()
                && let Some(shape) = complete_response(&scratch[..read])?
            {
                return Ok(ReadOutcome::Whole(shape, &scratch[..read]));
            }
            // Only answers in pieces are copied.
            self.begun.extend_from_slice(&scratch[..read]);
            if let Some(shape) = complete_response(&self.begun)? {
                return Ok(ReadOutcome::Whole(shape, &self.begun));
            }
            if read < scratch.len() {
                return Ok(ReadOutcome::Part); // there is no more; more is news
            }
        }
    }

    /// Clears the handled response: the next one begins.
    pub(super) fn clear_response(&mut self) {
        self.begun.clear();
    }
}

/// Returns the shape of a complete response. Bytes behind it are an error.
fn complete_response(bytes: &[u8]) -> io::Result<Option<ResponseShape>> {
    let Some(shape) = ResponseShape::parse_head(bytes)? else {
        return Ok(None);
    };
    match bytes.len().cmp(&shape.total_bytes()) {
        std::cmp::Ordering::Less => Ok(None),
        std::cmp::Ordering::Equal => Ok(Some(shape)),
        // More bytes than the answer has: the server sent something that was not requested.
        std::cmp::Ordering::Greater => Err(io::ErrorKind::InvalidData.into()),
    }
}
