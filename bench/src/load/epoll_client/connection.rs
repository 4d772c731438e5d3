//! Non-blocking connections: unsent bytes of a request, received bytes of an answer.

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

/// New bytes are told once: a caller reads all there is, so nothing has to be looked at twice.
const CONNECTION_EVENTS: EventFlags = EventFlags::IN
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);

/// An open connection, or one that is being opened.
pub(super) struct EpollConnection {
    socket: OwnedFd,
    /// Bytes of a request that the kernel has not taken yet.
    unsent: Vec<u8>,
    /// The beginning of an answer of which the rest has not come.
    begun: Vec<u8>,
}

/// Result of a read.
pub(super) enum ReadOutcome<'a> {
    /// Not yet a whole answer.
    Part,
    /// An answer, head and body.
    Whole(ResponseShape, &'a [u8]),
}

impl EpollConnection {
    /// Does not wait until it is open: over loopback it is, as a rule, when this returns. News of
    /// it bear `number`.
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

    /// Sends a request, or keeps what cannot be sent yet until [`EpollConnection::send_rest`].
    pub(super) fn send_request(
        &mut self,
        epoll: &OwnedFd,
        number: u64,
        request: &[u8],
    ) -> io::Result<()> {
        let sent = self.write_some(request)?;
        // OUT is asked for only while bytes are left: a socket is nearly always writable, and each
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

    /// Goes on with a request that was not sent as a whole.
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

    /// Reads what there is. Most answers come whole, and are looked at in `scratch`, which stays in
    /// the processor's cache.
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
                && let Some(shape) = whole_response(&scratch[..read])?
            {
                return Ok(ReadOutcome::Whole(shape, &scratch[..read]));
            }
            // Only answers in pieces are copied.
            self.begun.extend_from_slice(&scratch[..read]);
            if let Some(shape) = whole_response(&self.begun)? {
                return Ok(ReadOutcome::Whole(shape, &self.begun));
            }
            if read < scratch.len() {
                return Ok(ReadOutcome::Part); // there is no more; more is news
            }
        }
    }

    /// The answer has been looked at: the next one begins.
    pub(super) fn clear_response(&mut self) {
        self.begun.clear();
    }
}

/// Returns the shape of a complete answer. Bytes behind it are an error.
fn whole_response(bytes: &[u8]) -> io::Result<Option<ResponseShape>> {
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
