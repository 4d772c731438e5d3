//! A connection to a function's own server, or to another node.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use nearpath_types::FunctionServer;
use nearpath_types::policy::LoopbackDelivery;
use nearpath_wire::mtls::CallerStream;
use rustix::net::sockopt::{set_tcp_nodelay, set_tcp_quickack};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::response_head::InvalidResponse;
use super::server_socket::ServerSocket;
use crate::event_loop::{PolledSocket, Poller, Readiness};

/// Read buffer for a usual response.
const READ_RESERVE_BYTES: usize = 4096;
/// Responses after which a server has shown that it keeps its connections.
const MIN_TRUSTED_RESPONSES: u32 = 16;
/// Idle time up to which the event loop's last look at such a connection is enough.
const MAX_TRUSTED_IDLE_AGE: Duration = Duration::from_millis(1);
/// Bytes of requests, with their overhead, after which a connection is replaced if sockmap redirects its
/// bytes: what a server that reads nothing can hold. TCP's window does not bound it.
const MAX_REDIRECTED_BYTES: u64 = 512 * 1024;
/// Memory of a redirected message beside its bytes (`MESSAGE_OVERHEAD_BYTES` in `bpf/sock_loopback.c`).
const MESSAGE_OVERHEAD_BYTES: u64 = 1024;
/// Read buffer for a body that streams.
const STREAM_RESERVE_BYTES: usize = 32 * 1024;

/// Connection to a function's own server, or to another node.
pub(crate) struct ServerConnection {
    socket: ServerSocket,
    /// Received bytes that belong to nothing yet.
    pub(super) buffer: BytesMut,
    opened_at: Instant,
    /// Responses so far.
    responses: u32,
    /// Bytes of requests so far, with their overhead.
    request_bytes: u64,
    delivery: LoopbackDelivery,
}

/// Cause for which a head did not arrive.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResponseHeadError {
    #[error("the connection was closed")]
    Closed,
    /// The other node refused this one's certificate. No request has run.
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Invalid(#[from] InvalidResponse),
}

impl ServerConnection {
    /// Opens a connection inside the instance.
    ///
    /// # Errors
    /// If the server accepts none.
    pub(super) async fn open(server: &FunctionServer, poller: &Poller) -> io::Result<Self> {
        let socket = server.network.open_tcp_socket(server.addr.is_ipv6())?;
        // Heads and small bodies would wait for acknowledgements (Nagle's algorithm).
        set_tcp_nodelay(&socket, true)?;
        let socket = PolledSocket::connect(socket, server.addr, poller).await?;
        let delivery = server.network.delivery();
        Ok(Self::new(ServerSocket::Clear(socket), delivery))
    }

    /// Wraps a connection to another node, after its handshake.
    pub(super) fn to_node(stream: CallerStream<PolledSocket>) -> Self {
        Self::new(
            ServerSocket::Encrypted(stream.into()),
            LoopbackDelivery::Tcp,
        )
    }

    fn new(socket: ServerSocket, delivery: LoopbackDelivery) -> Self {
        Self {
            socket,
            buffer: BytesMut::new(),
            opened_at: Instant::now(),
            responses: 0,
            request_bytes: 0,
            delivery,
        }
    }

    /// Returns the socket, to attach a handler to it.
    pub(crate) fn socket(&self) -> &PolledSocket {
        self.socket.polled()
    }

    /// Returns why the other node has refused this one's certificate. It has read no request then.
    pub(super) fn refusal(&self) -> Option<String> {
        self.socket.refusal()
    }

    /// Returns whether written bytes wait for room in the socket.
    pub(super) fn has_unsent_bytes(&self) -> bool {
        self.socket.has_unsent_bytes()
    }

    /// Moves the connection to another event loop, if it is not there.
    ///
    /// # Errors
    /// If the kernel cannot watch it.
    pub(super) fn move_to(&mut self, poller: &Poller) -> io::Result<()> {
        self.socket.move_to(poller)
    }

    /// Returns the time since the connection was opened.
    pub(super) fn age_at(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.opened_at)
    }

    pub(super) fn is_watched_by(&self, poller: &Poller) -> bool {
        self.socket().is_watched_by(poller)
    }

    /// Counts a response that ended as announced.
    pub(super) fn note_response_end(&mut self) {
        self.responses = self.responses.saturating_add(1);
    }

    /// Notes that a request is sent.
    pub(super) fn note_request(&mut self, bytes: usize) {
        self.request_bytes += bytes as u64 + MESSAGE_OVERHEAD_BYTES;
    }

    /// Returns whether it may carry more requests.
    pub(super) fn may_carry_more(&self) -> bool {
        self.delivery == LoopbackDelivery::Tcp || self.request_bytes < MAX_REDIRECTED_BYTES
    }

    /// Returns whether more may have arrived although a read got less than its buffer takes. Sockmap has a
    /// queue of its own, which is read before that of TCP.
    pub(super) fn may_have_more(&self) -> bool {
        self.delivery == LoopbackDelivery::Sockmap || self.socket().may_be_readable()
    }

    /// Returns whether a connection that was idle for `age` is open, and no byte has come. The event
    /// loop may not have seen a close yet, or bytes that would answer the next request: the kernel
    /// knows. It is not asked right after a response of a server that keeps its connections.
    pub(super) fn is_open_and_silent(&mut self, age: Duration) -> bool {
        let is_trusted = self.responses >= MIN_TRUSTED_RESPONSES && age <= MAX_TRUSTED_IDLE_AGE;
        let is_silent = !self.socket().may_be_readable() && self.socket.is_session_silent();
        if is_trusted && is_silent {
            return true;
        }
        self.socket.is_open_and_silent()
    }

    /// Writes a part of the request without waiting; returns its length.
    ///
    /// # Errors
    /// `WouldBlock`; of the connection.
    pub(super) fn try_write(&mut self, head: &[u8], body: &[u8]) -> io::Result<usize> {
        match (head, body) {
            (rest, []) | ([], rest) => self.socket.try_write(&[IoSlice::new(rest)]),
            _ => self
                .socket
                .try_write(&[IoSlice::new(head), IoSlice::new(body)]),
        }
    }

    /// Writes the rest of a request.
    ///
    /// # Errors
    /// Of the connection.
    pub(super) async fn write_rest(&mut self, request: &mut impl Buf) -> io::Result<()> {
        self.socket.write_all_buf(request).await?;
        self.socket.flush().await // what TLS has encrypted
    }

    /// Reads once without waiting, into the buffer; 0: the server has closed.
    ///
    /// # Errors
    /// `WouldBlock`; of the connection.
    pub(super) fn try_read_more(&mut self) -> io::Result<usize> {
        self.socket.try_read(&mut self.buffer)
    }

    /// Reads once, into the buffer; 0: the server has closed.
    ///
    /// # Errors
    /// Of the connection.
    pub(super) async fn read_more(&mut self) -> io::Result<usize> {
        self.buffer.reserve(READ_RESERVE_BYTES);
        self.try_before_waiting();
        self.socket.read_buf(&mut self.buffer).await
    }

    /// Has the next read try the socket before it waits. Sockmap's queue and TCP's share one event: a read
    /// of one may have left bytes in the other.
    fn try_before_waiting(&self) {
        if self.delivery == LoopbackDelivery::Sockmap {
            self.socket().note_ready(Readiness::READ);
        }
    }

    /// Acknowledges what has come at once. Simple servers write head and body apart with Nagle's
    /// algorithm: the body then waits for the acknowledgement, which the kernel delays by 40 ms.
    pub(super) fn acknowledge_now(&self) {
        let _ = set_tcp_quickack(self.socket(), true); // only speed depends on it
    }

    /// Reads a part of a long body into the buffer; 0: the server has closed.
    pub(super) fn poll_read_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.buffer.reserve(STREAM_RESERVE_BYTES);
        self.try_before_waiting();
        pin!(self.socket.read_buf(&mut self.buffer)).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::OwnedFd;
    use std::rc::Rc;
    use std::sync::Arc;

    use nearpath_testkit::eventually;
    use nearpath_types::InstanceNetwork;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

    use super::*;
    use crate::event_loop::EventLoop;
    use crate::event_loop::tests::run_with_loop;

    #[derive(Debug)]
    struct OwnNetwork;

    impl InstanceNetwork for OwnNetwork {
        fn open_tcp_socket(&self, _: bool) -> io::Result<OwnedFd> {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
            Ok(socket_with(family, kind, flags, None)?)
        }

        fn delivery(&self) -> LoopbackDelivery {
            LoopbackDelivery::Tcp
        }

        fn oom_kills(&self) -> Option<u64> {
            None
        }
    }

    async fn send_on_trusted_connections(event_loop: Rc<EventLoop>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = FunctionServer {
            addr: listener.local_addr().unwrap(),
            base_path: String::new(),
            exec_timeout: None,
            network: Arc::new(OwnNetwork),
        };
        for sends_bytes in [true, false] {
            let opening = ServerConnection::open(&server, event_loop.poller());
            let mut connection = opening.await.unwrap();
            let (mut peer, _) = listener.accept().unwrap();
            (0..MIN_TRUSTED_RESPONSES).for_each(|_| connection.note_response_end());
            assert!(connection.is_open_and_silent(Duration::ZERO));
            match sends_bytes {
                true => io::Write::write_all(&mut peer, b"x").unwrap(),
                false => drop(peer),
            }
            eventually("the event is seen", async || {
                !connection.is_open_and_silent(Duration::ZERO)
            })
            .await;
        }
    }

    #[test]
    fn a_trusted_connection_is_checked_after_an_event() {
        run_with_loop(send_on_trusted_connections);
    }
}
