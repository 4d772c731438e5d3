//! Accepts bytes at once and delivers them later (`writes=async`), even after the function that
//! wrote them has ended; plain or through TLS.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, BytesMut};
use nearpath_kernel::sockets::{TcpState, tcp_state};
use nearpath_types::egress::WriteMode;
use rustix::net::{Shutdown, shutdown, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::sync::watch;

#[cfg(test)]
mod tests;

use super::forward::reset_at_close;
use crate::policy::ConnectionPermit;
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::pool::NoConnection;
use nearpath_connpool::socket::{UpstreamSocket, UpstreamStream};
use nearpath_dbproxy::relay::{sleep_until, wait_sender_dropped};

/// Maximum bytes buffered for one connection; further writes wait in the kernel.
const MAX_BUFFERED_BYTES: usize = 1 << 20;
/// Bytes read at a time.
const MAX_CHUNK_BYTES: usize = 64 << 10;
/// Interval of the checks for delivery; the kernel reports no event for it.
const DELIVERY_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// A connection with async writes.
pub(super) struct WriteForwarder<'a> {
    client: &'a TcpStream,
    counters: &'a DestinationCounters,
    alive: watch::Receiver<()>,
    /// Fails when no more bytes can arrive; dropped when none are expected.
    writes_expected: Option<watch::Receiver<()>>,
    /// The client wrote more than could arrive.
    is_truncated: bool,
    flush_timeout: Duration,
    /// Accepted bytes that are not written yet.
    buffered: BytesMut,
    /// Some bytes were accepted.
    has_accepted: bool,
    /// The client has shut down its writes.
    client_ended: bool,
    /// The client does not read any more.
    client_gone: bool,
    /// Deadline of the delivery, once the client writes no more.
    deadline: Option<Instant>,
    permit: &'a ConnectionPermit,
}

/// Reason why not everything was delivered.
#[derive(Debug)]
pub(super) struct WriteFailure {
    /// Reason, in words for the tenant.
    pub(super) reason: String,
    /// True if the function was told that bytes are written which are not.
    pub(super) was_accepted: bool,
    /// True if no client is left that sees the connection break.
    pub(super) client_gone: bool,
}

type ConnectFuture<'a> = Pin<Box<dyn Future<Output = Result<UpstreamSocket, NoConnection>> + 'a>>;

impl<'a> WriteForwarder<'a> {
    pub(super) fn new(
        client: &'a TcpStream,
        permit: &'a ConnectionPermit,
        counters: &'a DestinationCounters,
    ) -> Self {
        let flush_timeout = match permit.destination.egress.writes {
            WriteMode::Async { flush } => flush,
            WriteMode::Sync => Duration::ZERO,
        };
        Self {
            client,
            counters,
            alive: permit.alive.clone(),
            writes_expected: permit.writes_expected.take(),
            is_truncated: false,
            flush_timeout,
            buffered: BytesMut::new(),
            has_accepted: false,
            client_ended: false,
            client_gone: false,
            deadline: None,
            permit,
        }
    }

    /// Runs until both sides have closed, or until nothing more can be delivered.
    pub(super) async fn run(mut self, connect: ConnectFuture<'_>) -> Result<(), WriteFailure> {
        let socket = match self.wait_connected(connect).await {
            Ok(socket) => socket,
            Err(why) => return Err(self.write_failure(why)),
        };
        self.permit.waiting_guard.release_count();
        let (stream, _guard) = socket.into_parts();
        // A failure resets the connection, so that the destination does not take the bytes for
        // complete.
        let forwarded = match stream.as_fd().try_clone_to_owned() {
            Ok(tcp) => self
                .forward_both_ways(stream, &tcp)
                .await
                .inspect_err(|_| reset_at_close(&tcp)),
            Err(error) => Err(error),
        };
        forwarded.map_err(|error| self.write_failure(error.to_string()))?;
        if self.is_truncated {
            Err(self.write_failure(TRUNCATED_MESSAGE.to_owned()))
        } else {
            Ok(())
        }
    }

    /// Returns the failure. Reads the rest of the input first: only a client that still listens
    /// sees its connection break.
    fn write_failure(&mut self, why: String) -> WriteFailure {
        while !self.client_ended {
            self.buffered.clear();
            match self.read_chunk() {
                Ok(0) => self.client_ended = true,
                Ok(_) => self.has_accepted = true,
                Err(_) => break,
            }
        }
        WriteFailure {
            reason: why,
            was_accepted: self.has_accepted,
            client_gone: self.client_gone || self.client_ended,
        }
    }

    /// Waits for the connection and accepts the client's bytes meanwhile.
    async fn wait_connected(
        &mut self,
        mut connect: ConnectFuture<'_>,
    ) -> Result<UpstreamSocket, String> {
        loop {
            let (deadline, has_room) = (self.deadline, self.has_room());
            let (mut alive, mut writes_expected) =
                (self.alive.clone(), self.writes_expected.clone());
            tokio::select! {
                // A finished connect wins, so that buffered bytes go out before more are read.
                biased;
                found = &mut connect => return found.map_err(|error| format!("no connection to {error}")),
                _ = alive.changed(), if !self.client_gone => self.mark_client_gone(),
                () = wait_sender_dropped(writes_expected.as_mut()) => self.end_arrivals(),
                () = sleep_until(deadline) => return Err(FLUSH_TIMEOUT_MESSAGE.to_owned()),
                _ = self.client.readable(), if has_room => self.accept_bytes(),
            }
            // Nothing was accepted, so nothing is lost.
            if self.client_gone && self.client_ended && !self.has_accepted {
                return Err("the function closed before it wrote anything".to_owned());
            }
        }
    }

    /// Forwards both ways until everything is delivered. `tcp` is the TCP socket below the stream.
    ///
    /// # Errors
    /// When the destination resets the connection, or `flush` passes before everything is
    /// delivered.
    async fn forward_both_ways(&mut self, stream: UpstreamStream, tcp: &OwnedFd) -> io::Result<()> {
        let (mut wrote_all, mut read_all, mut returned_all, mut confirmed) =
            (false, false, false, false);
        let ((mut from, mut to), mut answers) = (split(stream), BytesMut::new());
        // TLS may buffer more than it has sent, so data is followed by a flush.
        let mut flushed = true;
        loop {
            confirmed |= wrote_all && is_delivered(tcp)?;
            if confirmed && (read_all && answers.is_empty() || self.client_gone) {
                return Ok(());
            }
            // The deadline bounds the delivery; afterwards the destination may answer as long as it
            // likes.
            let (deadline, has_room) = (self.deadline.filter(|_| !confirmed), self.has_room());
            let next = match self.buffered.is_empty() {
                false => Some(NextWrite::Data),
                true if !flushed => Some(NextWrite::Flush),
                true => (self.client_ended && !wrote_all).then_some(NextWrite::Shutdown),
            };
            let (reads, writes_back) = (
                !read_all && answers.len() < MAX_CHUNK_BYTES,
                !answers.is_empty(),
            );
            answers.reserve(MAX_CHUNK_BYTES);
            let (mut alive, mut writes_expected) =
                (self.alive.clone(), self.writes_expected.clone());
            tokio::select! {
                biased;
                _ = alive.changed(), if !self.client_gone => self.mark_client_gone(),
                () = wait_sender_dropped(writes_expected.as_mut()) => self.end_arrivals(),
                // The last acknowledgement may have arrived since the last check.
                () = sleep_until(deadline) => match wrote_all && is_delivered(tcp)? {
                    true => confirmed = true,
                    false => return Err(io::Error::other(FLUSH_TIMEOUT_MESSAGE)),
                },
                written = perform_write(&mut to, next, &self.buffered), if next.is_some() => {
                    self.record_written(written?);
                    flushed = next != Some(NextWrite::Data);
                    wrote_all = next == Some(NextWrite::Shutdown);
                }
                _ = self.client.readable(), if has_room => self.accept_bytes(),
                read = from.read_buf(&mut answers), if reads => read_all = self.record_read(read, wrote_all)?,
                _ = self.client.writable(), if writes_back => self.write_to_client(&mut answers),
                () = tokio::time::sleep(DELIVERY_CHECK_INTERVAL), if wrote_all && !confirmed => {}
            }
            if read_all && answers.is_empty() && !std::mem::replace(&mut returned_all, true) {
                // The client may have closed already.
                let _ = shutdown(self.client, Shutdown::Write);
            }
            // Answers have no reader any more.
            if self.client_gone {
                answers.clear();
            }
        }
    }

    fn has_room(&self) -> bool {
        !self.client_ended && self.buffered.len() < MAX_BUFFERED_BYTES
    }

    /// Accepts bytes of the client.
    fn accept_bytes(&mut self) {
        match self.read_chunk() {
            Ok(0) => self.end_input(),
            Ok(_) => {
                if !std::mem::replace(&mut self.has_accepted, true) {
                    DestinationCounters::increase(&self.counters.early_writes, 1);
                }
            }
            // More bytes may arrive while `writes_expected` is set; otherwise the input is
            // complete.
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && self.writes_expected.is_some() => {}
            Err(error) => {
                self.is_truncated |= error.kind() == io::ErrorKind::WouldBlock;
                self.end_input();
                self.mark_client_gone();
            }
        }
    }

    /// Reads one chunk, as far as the buffer has room.
    fn read_chunk(&mut self) -> io::Result<usize> {
        let chunk_bytes = MAX_CHUNK_BYTES.min(MAX_BUFFERED_BYTES - self.buffered.len());
        self.buffered.reserve(chunk_bytes);
        self.client
            .try_read_buf(&mut (&mut self.buffered).limit(chunk_bytes))
    }

    fn end_input(&mut self) {
        (self.client_ended, self.writes_expected) = (true, None);
        // The first event sets the deadline; later ones do not extend it.
        self.deadline
            .get_or_insert(Instant::now() + self.flush_timeout);
    }

    /// Records that the client is gone; bytes that it wrote are still accepted as they arrive.
    fn mark_client_gone(&mut self) {
        self.client_gone = true;
        self.deadline
            .get_or_insert(Instant::now() + self.flush_timeout);
    }

    /// Ends the input: accepts the bytes that have arrived, and no more.
    fn end_arrivals(&mut self) {
        self.writes_expected = None;
        self.mark_client_gone();
        while self.has_room() {
            self.accept_bytes();
        }
    }

    fn record_written(&mut self, written: usize) {
        DestinationCounters::increase(&self.counters.sent_bytes, written as u64);
        self.buffered.advance(written);
    }

    /// Records a read from the destination; returns true at its end. Many servers end TLS without
    /// close_notify after they received one.
    fn record_read(&mut self, read: io::Result<usize>, wrote_all: bool) -> io::Result<bool> {
        match read {
            Ok(read) => {
                DestinationCounters::increase(&self.counters.received_bytes, read as u64);
                Ok(read == 0)
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && wrote_all => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn write_to_client(&mut self, answers: &mut BytesMut) {
        match self.client.try_write(answers) {
            Ok(written) => answers.advance(written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Bytes that it wrote before are read as usual.
            Err(_) => self.mark_client_gone(),
        }
    }
}

/// Next operation towards the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextWrite {
    Data,
    Flush,
    /// No more bytes follow.
    Shutdown,
}

/// Performs the operation as far as possible and returns the bytes written. Cancelling it loses
/// nothing.
async fn perform_write(
    to: &mut WriteHalf<UpstreamStream>,
    operation: Option<NextWrite>,
    buffered: &[u8],
) -> io::Result<usize> {
    match operation {
        Some(NextWrite::Data) => to.write(buffered).await,
        Some(NextWrite::Flush) => to.flush().await.map(|()| 0),
        Some(NextWrite::Shutdown) => ignore_not_connected(to.shutdown().await).map(|()| 0),
        None => std::future::pending().await,
    }
}

const FLUSH_TIMEOUT_MESSAGE: &str = "the destination did not accept all bytes within `flush`";
const TRUNCATED_MESSAGE: &str =
    "the function ended before all its bytes arrived, the rest in its socket is lost";

/// Ignores a shutdown of a connection that is closed already.
fn ignore_not_connected(shut: io::Result<()>) -> io::Result<()> {
    match shut {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        other => other,
    }
}

/// Returns true if the destination's machine has acknowledged all bytes and the FIN after them.
///
/// # Errors
/// When the connection was reset, which ends it and acknowledges nothing.
fn is_delivered(tcp: &OwnedFd) -> io::Result<bool> {
    // Read before the error, so that no reset comes in between.
    let ended = tcp_state(tcp).is_ok_and(|state| state != TcpState::Closing);
    match sockopt::socket_error(tcp)? {
        Err(error) => Err(error.into()),
        Ok(()) => Ok(ended),
    }
}
