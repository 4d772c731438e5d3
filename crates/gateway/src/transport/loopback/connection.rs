//! A connection to a function's own server.

use std::io;
use std::net::TcpStream as StdTcpStream;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use nearpath_types::FunctionServer;
use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_quickack;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::event_loop::EventLoopToken;
use super::response_head::{HeadParser, InvalidResponse, MAX_HEAD_BYTES, ResponseHead};

/// Read buffer for a usual response.
const READ_RESERVE_BYTES: usize = 4096;
/// Responses after which a server has shown that it keeps its connections.
const MIN_TRUSTED_RESPONSES: u32 = 16;
/// Idle time up to which the event loop's last look at such a connection is enough.
const MAX_TRUSTED_IDLE_AGE: Duration = Duration::from_millis(1);
/// Read buffer for a body that streams.
const STREAM_RESERVE_BYTES: usize = 32 * 1024;

/// Connection to a function's own server.
pub(crate) struct LoopbackConnection {
    stream: TcpStream,
    /// Received bytes that belong to nothing yet.
    pub(super) buffer: BytesMut,
    opened_at: Instant,
    /// Responses so far.
    responses: u32,
    /// Last: dropped after `stream`, which needs its event loop to deregister.
    registered_with: EventLoopToken,
}

/// Cause for which a head did not arrive.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResponseHeadError {
    #[error("the connection was closed")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Invalid(#[from] InvalidResponse),
}

impl LoopbackConnection {
    /// Opens a connection inside the instance.
    ///
    /// # Errors
    /// If the server accepts none.
    pub(super) async fn open(
        server: &FunctionServer,
        event_loop: &EventLoopToken,
    ) -> io::Result<Self> {
        let socket = server.network.open_tcp_socket(server.addr.is_ipv6())?;
        let socket = TcpSocket::from_std_stream(StdTcpStream::from(socket));
        // Heads and small bodies would wait for acknowledgements (Nagle's algorithm).
        socket.set_nodelay(true)?;
        let stream = socket.connect(server.addr).await?;
        Ok(Self {
            stream,
            buffer: BytesMut::new(),
            opened_at: Instant::now(),
            responses: 0,
            registered_with: event_loop.clone(),
        })
    }

    /// Returns the time since the connection was opened.
    pub(super) fn age_at(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.opened_at)
    }

    pub(super) fn is_registered_with(&self, event_loop: &EventLoopToken) -> bool {
        self.registered_with.is_same(event_loop)
    }

    /// Counts a response that ended as announced.
    pub(super) fn note_response_end(&mut self) {
        self.responses = self.responses.saturating_add(1);
    }

    /// Returns whether a connection that was idle for `age` is open and silent. Asks the kernel,
    /// because the event loop may not have seen a close yet, or bytes that would answer the next
    /// request; not while a server that keeps its connections has just answered.
    pub(super) fn is_open_and_silent(&self, age: Duration) -> bool {
        if self.responses >= MIN_TRUSTED_RESPONSES && age <= MAX_TRUSTED_IDLE_AGE {
            // No system call unless the event loop has seen something.
            let seen = self.stream.try_read(&mut [0; 1]);
            return seen.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        }
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        recv(&self.stream, &mut [0; 1], flags) == Err(Errno::AGAIN)
    }

    /// Writes head and body, in one system call as a rule. A body that fits behind the head is copied:
    /// one buffer costs the kernel less than two.
    pub(super) async fn write_request(
        &mut self,
        mut head: BytesMut,
        body: Bytes,
    ) -> io::Result<()> {
        if body.len() <= head.capacity() - head.len() {
            head.put_slice(&body);
            return self.stream.write_all(&head).await;
        }
        self.stream.write_all_buf(&mut head.chain(body)).await
    }

    /// Reads the final head of the response.
    pub(super) async fn read_head(&mut self) -> Result<ResponseHead, ResponseHeadError> {
        let (mut parser, mut parsed_bytes) = (HeadParser::default(), 0);
        loop {
            if self.read_more().await? == 0 {
                return Err(ResponseHeadError::Closed);
            }
            // Not for each piece: parsing a head again for every byte would cost its square.
            let is_parsed =
                has_blank_line(&self.buffer[parsed_bytes..]) || self.buffer.len() >= MAX_HEAD_BYTES; // which refuses it
            if is_parsed && let Some(head) = parser.parse(&mut self.buffer)? {
                return Ok(head);
            }
            // The last bytes may begin the blank line.
            parsed_bytes = self.buffer.len().saturating_sub(3);
        }
    }

    /// Reads once, into the buffer; 0: the server has closed.
    pub(super) async fn read_more(&mut self) -> io::Result<usize> {
        self.buffer.reserve(READ_RESERVE_BYTES);
        self.stream.read_buf(&mut self.buffer).await
    }

    /// Acknowledges what has come at once. Simple servers write head and body apart with Nagle's
    /// algorithm: the body then waits for the acknowledgement, which the kernel delays by 40 ms.
    pub(super) fn acknowledge_now(&self) {
        let _ = set_tcp_quickack(&self.stream, true); // only speed depends on it
    }

    /// Reads a part of a long body into the buffer; 0: the server has closed.
    pub(super) fn poll_read_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.buffer.reserve(STREAM_RESERVE_BYTES);
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            match self.stream.try_read_buf(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
        }
    }
}

/// Returns whether a head may end here. Lines may end in LF alone for the parser, which decides.
fn has_blank_line(bytes: &[u8]) -> bool {
    let has = |end: &[u8]| bytes.windows(end.len()).any(|part| part == end);
    has(b"\n\r\n") || has(b"\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_end_a_head() {
        for (bytes, is_end) in [
            (&b"HTTP/1.1 200 OK\r\nx: 1\r\n\r\n"[..], true),
            (b"\n\n", true),
            (b"\r\n\r\n", true),
            (b"\n\r", false),
            (b"HTTP/1.1 200 OK\r\nx: 1\r\n", false),
            (b"\r", false),
            (b"", false),
        ] {
            assert_eq!(has_blank_line(bytes), is_end, "{bytes:?}");
        }
    }
}
