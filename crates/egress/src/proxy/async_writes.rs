//! Bytes that the node takes at once and delivers when it can (`writes=async`), also when the function that wrote them is gone: as they are, or through
//! TLS.

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

/// Most that is held of one connection: who writes more waits.
const MAX_BUFFERED_BYTES: usize = 1 << 20;
/// Read at a time.
const MAX_CHUNK_BYTES: usize = 64 << 10;
/// How often it is looked at whether a destination has all of it.
const DELIVERY_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// One connection.
pub(super) struct WriteForwarder<'a> {
    client: &'a TcpStream,
    counters: &'a DestinationCounters,
    alive: watch::Receiver<()>,
    /// Fails when nothing more can come; dropped when nothing more is to come.
    writes_expected: Option<watch::Receiver<()>>,
    /// The client wrote more than could come.
    is_truncated: bool,
    flush_timeout: Duration,
    /// Taken from the client, and not written yet.
    buffered: BytesMut,
    /// Something was taken, at any time.
    has_accepted: bool,
    /// The client writes no more.
    client_ended: bool,
    /// It does not read any more.
    client_gone: bool,
    /// When delivering is given up, once the client writes no more.
    deadline: Option<Instant>,
    permit: &'a ConnectionPermit,
}

/// Why not everything was delivered.
#[derive(Debug)]
pub(super) struct WriteFailure {
    /// In words for the tenant.
    pub(super) reason: String,
    /// Whether the function was told that something is done which is not.
    pub(super) was_accepted: bool,
    /// Whether nobody is there to see the connection break.
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

    /// Until both sides have ended, or nothing more can be delivered.
    pub(super) async fn run(mut self, connect: ConnectFuture<'_>) -> Result<(), WriteFailure> {
        let socket = match self.wait_connected(connect).await {
            Ok(socket) => socket,
            Err(why) => return Err(self.write_failure(why)),
        };
        self.permit.waiting_guard.release_count();
        let (stream, _gone) = socket.into_parts();
        let carried = match stream.as_fd().try_clone_to_owned() {
            Ok(tcp) => self
                .forward_both_ways(stream, &tcp)
                .await
                .inspect_err(|_| reset_at_close(&tcp)),
            Err(error) => Err(error),
        };
        carried.map_err(|error| self.write_failure(error.to_string()))?;
        if self.is_truncated {
            Err(self.write_failure(TRUNCATED_MESSAGE.to_owned()))
        } else {
            Ok(())
        }
    }

    /// Whether the client has gone is looked at in what it sent last, as far as that is here: only one that still listens sees its connection break.
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

    /// A connection; what the client writes meanwhile is taken.
    async fn wait_connected(
        &mut self,
        mut connect: ConnectFuture<'_>,
    ) -> Result<UpstreamSocket, String> {
        loop {
            let (until, room) = (self.deadline, self.has_room());
            let (mut here, mut tail) = (self.alive.clone(), self.writes_expected.clone());
            tokio::select! {
                biased;
                found = &mut connect => return found.map_err(|error| format!("no connection to {error}")),
                _ = here.changed(), if !self.client_gone => self.mark_client_gone(),
                () = wait_sender_dropped(tail.as_mut()) => self.end_arrivals(),
                () = sleep_until(until) => return Err(FLUSH_TIMEOUT_MESSAGE.to_owned()),
                _ = self.client.readable(), if room => self.accept_bytes(),
            }
            if self.client_gone && self.client_ended && !self.has_accepted {
                return Err("the function left before it wrote anything".to_owned());
            }
        }
    }

    /// Both ways, until nothing is left to be said. `tcp` is what the stream goes over.
    async fn forward_both_ways(&mut self, stream: UpstreamStream, tcp: &OwnedFd) -> io::Result<()> {
        let (mut said_all, mut heard_all, mut told_all, mut confirmed) =
            (false, false, false, false);
        let ((mut from, mut to), mut back) = (split(stream), BytesMut::new());
        let mut flushed = true; // TLS may have taken more than it has sent
        loop {
            confirmed |= said_all && is_delivered(tcp)?;
            if confirmed && (heard_all && back.is_empty() || self.client_gone) {
                return Ok(());
            }
            let (until, room) = (self.deadline.filter(|_| !confirmed), self.has_room());
            let next = match self.buffered.is_empty() {
                false => Some(NextWrite::Data),
                true if !flushed => Some(NextWrite::Flush),
                true => (self.client_ended && !said_all).then_some(NextWrite::Shutdown),
            };
            let (reads, tells) = (!heard_all && back.len() < MAX_CHUNK_BYTES, !back.is_empty());
            back.reserve(MAX_CHUNK_BYTES);
            let (mut here, mut tail) = (self.alive.clone(), self.writes_expected.clone());
            tokio::select! {
                biased;
                _ = here.changed(), if !self.client_gone => self.mark_client_gone(),
                () = wait_sender_dropped(tail.as_mut()) => self.end_arrivals(),
                () = sleep_until(until) => match said_all && is_delivered(tcp)? {
                    true => confirmed = true,
                    false => return Err(io::Error::other(FLUSH_TIMEOUT_MESSAGE)),
                },
                written = perform_write(&mut to, next, &self.buffered), if next.is_some() => {
                    self.record_written(written?);
                    flushed = next != Some(NextWrite::Data);
                    said_all = next == Some(NextWrite::Shutdown);
                }
                _ = self.client.readable(), if room => self.accept_bytes(),
                read = from.read_buf(&mut back), if reads => heard_all = self.record_read(read, said_all)?,
                _ = self.client.writable(), if tells => self.write_to_client(&mut back),
                () = tokio::time::sleep(DELIVERY_CHECK_INTERVAL), if said_all && !confirmed => {}
            }
            if heard_all && back.is_empty() && !std::mem::replace(&mut told_all, true) {
                let _ = shutdown(self.client, Shutdown::Write); // it may be gone
            }
            if self.client_gone {
                back.clear();
            }
        }
    }

    fn has_room(&self) -> bool {
        !self.client_ended && self.buffered.len() < MAX_BUFFERED_BYTES
    }

    /// Takes what the client has written.
    fn accept_bytes(&mut self) {
        match self.read_chunk() {
            Ok(0) => self.end_input(),
            Ok(_) => {
                if !std::mem::replace(&mut self.has_accepted, true) {
                    DestinationCounters::increase(&self.counters.early_writes, 1);
                }
            }
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && self.writes_expected.is_some() => {}
            Err(error) => {
                self.is_truncated |= error.kind() == io::ErrorKind::WouldBlock;
                self.end_input();
                self.mark_client_gone();
            }
        }
    }

    /// Reads a piece, no more than there is room for.
    fn read_chunk(&mut self) -> io::Result<usize> {
        let room = MAX_CHUNK_BYTES.min(MAX_BUFFERED_BYTES - self.buffered.len());
        self.buffered.reserve(room);
        self.client
            .try_read_buf(&mut (&mut self.buffered).limit(room))
    }

    fn end_input(&mut self) {
        (self.client_ended, self.writes_expected) = (true, None);
        self.deadline
            .get_or_insert(Instant::now() + self.flush_timeout);
    }

    /// The client is gone; what it wrote is still taken, as it comes.
    fn mark_client_gone(&mut self) {
        self.client_gone = true;
        self.deadline
            .get_or_insert(Instant::now() + self.flush_timeout);
    }

    /// Nothing comes any more; what the client wrote, as far as it has arrived, is still taken.
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

    /// Something of what the destination says; whether that was all. Many end TLS without a word once they were told that nothing more comes.
    fn record_read(&mut self, read: io::Result<usize>, said_all: bool) -> io::Result<bool> {
        match read {
            Ok(read) => {
                DestinationCounters::increase(&self.counters.received_bytes, read as u64);
                Ok(read == 0)
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && said_all => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn write_to_client(&mut self, back: &mut BytesMut) {
        match self.client.try_write(back) {
            Ok(written) => back.advance(written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.mark_client_gone(), // what it wrote before it broke off is read like all else
        }
    }
}

/// What is to be said to the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextWrite {
    Data,
    Flush,
    /// Nothing more comes.
    Shutdown,
}

/// Says it, as far as that is possible at once; how many bytes were taken. Giving it up half-way loses nothing.
async fn perform_write(
    to: &mut WriteHalf<UpstreamStream>,
    what: Option<NextWrite>,
    held: &[u8],
) -> io::Result<usize> {
    match what {
        Some(NextWrite::Data) => to.write(held).await,
        Some(NextWrite::Flush) => to.flush().await.map(|()| 0),
        Some(NextWrite::Shutdown) => ignore_not_connected(to.shutdown().await).map(|()| 0),
        None => std::future::pending().await,
    }
}

const FLUSH_TIMEOUT_MESSAGE: &str = "it did not take all of it within `flush`";
const TRUNCATED_MESSAGE: &str = "it did not take all of it in time: the function had ended, and what was left in its own socket is gone";

/// A destination that is closed knows already that nothing more comes.
fn ignore_not_connected(shut: io::Result<()>) -> io::Result<()> {
    match shut {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        other => other,
    }
}

/// Whether the destination's machine has confirmed all bytes, and the end after them.
///
/// # Errors
/// When it has reset the connection: that ends it as well, and confirms nothing.
fn is_delivered(tcp: &OwnedFd) -> io::Result<bool> {
    let ended = tcp_state(tcp).is_ok_and(|state| state != TcpState::Closing); // before the error: nothing comes in between
    match sockopt::socket_error(tcp)? {
        Err(error) => Err(error.into()),
        Ok(()) => Ok(ended),
    }
}
