//! Bytes that the node takes at once and delivers when it can (`writes=async`), also when the function that wrote them is gone: as they are, or through
//! TLS.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, BytesMut};
use nearpath_kernel::sockets::{TcpState, tcp_state};
use nearpath_types::egress::Writes;
use rustix::net::{Shutdown, shutdown, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::sync::watch;

#[cfg(test)]
mod tests;

use super::forward::reset_at_close;
use crate::policy::Pass;
use nearpath_connpool::counters::Ledger;
use nearpath_connpool::pool::NoConnection;
use nearpath_connpool::socket::{Socket, Stream};
use nearpath_dbproxy::relay::{over, sleep};

/// Most that is held of one connection: who writes more waits.
const MOST: usize = 1 << 20;
/// Read at a time.
const PIECE: usize = 64 << 10;
/// How often it is looked at whether a destination has all of it.
const LOOK: Duration = Duration::from_millis(10);

/// One connection.
pub(super) struct Carrier<'a> {
    client: &'a TcpStream,
    ledger: &'a Ledger,
    here: watch::Receiver<()>,
    /// Fails when nothing more can come; dropped when nothing more is to come.
    tail: Option<watch::Receiver<()>>,
    /// The client wrote more than could come.
    short: bool,
    flush: Duration,
    /// Taken from the client, and not written yet.
    held: BytesMut,
    /// Something was taken, at any time.
    taken: bool,
    /// The client writes no more.
    ended: bool,
    /// It does not read any more.
    gone: bool,
    /// When delivering is given up, once the client writes no more.
    until: Option<Instant>,
    pass: &'a Pass,
}

/// Why not everything was delivered.
#[derive(Debug)]
pub(super) struct Lost {
    /// In words for the tenant.
    pub(super) why: String,
    /// Whether the function was told that something is done which is not.
    pub(super) taken: bool,
    /// Whether nobody is there to see the connection break.
    pub(super) gone: bool,
}

type Connect<'a> = Pin<Box<dyn Future<Output = Result<Socket, NoConnection>> + 'a>>;

impl<'a> Carrier<'a> {
    pub(super) fn new(client: &'a TcpStream, pass: &'a Pass, ledger: &'a Ledger) -> Self {
        let flush = match pass.to.egress.writes {
            Writes::Async { flush } => flush,
            Writes::Sync => Duration::ZERO,
        };
        Self {
            client,
            ledger,
            here: pass.here.clone(),
            tail: pass.tail.take(),
            short: false,
            flush,
            held: BytesMut::new(),
            taken: false,
            ended: false,
            gone: false,
            until: None,
            pass,
        }
    }

    /// Until both sides have ended, or nothing more can be delivered.
    pub(super) async fn run(mut self, connect: Connect<'_>) -> Result<(), Lost> {
        let socket = match self.connected(connect).await {
            Ok(socket) => socket,
            Err(why) => return Err(self.lost(why)),
        };
        self.pass.waiting.end();
        let (stream, _gone) = socket.into_parts();
        let carried = match stream.as_fd().try_clone_to_owned() {
            Ok(tcp) => self.carry(stream, &tcp).await.inspect_err(|_| reset_at_close(&tcp)),
            Err(error) => Err(error),
        };
        carried.map_err(|error| self.lost(error.to_string()))?;
        if self.short { Err(self.lost(SHORT.to_owned())) } else { Ok(()) }
    }

    /// Whether the client has gone is looked at in what it sent last, as far as that is here: only one that still listens sees its connection break.
    fn lost(&mut self, why: String) -> Lost {
        while !self.ended {
            self.held.clear();
            match self.read() {
                Ok(0) => self.ended = true,
                Ok(_) => self.taken = true,
                Err(_) => break,
            }
        }
        Lost { why, taken: self.taken, gone: self.gone || self.ended }
    }

    /// A connection; what the client writes meanwhile is taken.
    async fn connected(&mut self, mut connect: Connect<'_>) -> Result<Socket, String> {
        loop {
            let (until, room) = (self.until, self.has_room());
            let (mut here, mut tail) = (self.here.clone(), self.tail.clone());
            tokio::select! {
                biased;
                found = &mut connect => return found.map_err(|error| format!("no connection to {error}")),
                _ = here.changed(), if !self.gone => self.leave(),
                () = over(tail.as_mut()) => self.cut(),
                () = sleep(until) => return Err(LATE.to_owned()),
                _ = self.client.readable(), if room => self.take(),
            }
            if self.gone && self.ended && !self.taken {
                return Err("the function left before it wrote anything".to_owned());
            }
        }
    }

    /// Both ways, until nothing is left to be said. `tcp` is what the stream goes over.
    async fn carry(&mut self, stream: Stream, tcp: &OwnedFd) -> io::Result<()> {
        let (mut said_all, mut heard_all, mut told_all, mut confirmed) = (false, false, false, false);
        let ((mut from, mut to), mut back) = (split(stream), BytesMut::new());
        let mut flushed = true; // TLS may have taken more than it has sent
        loop {
            confirmed |= said_all && has_all(tcp)?;
            if confirmed && (heard_all && back.is_empty() || self.gone) {
                return Ok(());
            }
            let (until, room) = (self.until.filter(|_| !confirmed), self.has_room());
            let next = match self.held.is_empty() {
                false => Some(Next::Write),
                true if !flushed => Some(Next::Flush),
                true => (self.ended && !said_all).then_some(Next::End),
            };
            let (reads, tells) = (!heard_all && back.len() < PIECE, !back.is_empty());
            back.reserve(PIECE);
            let (mut here, mut tail) = (self.here.clone(), self.tail.clone());
            tokio::select! {
                biased;
                _ = here.changed(), if !self.gone => self.leave(),
                () = over(tail.as_mut()) => self.cut(),
                () = sleep(until) => match said_all && has_all(tcp)? {
                    true => confirmed = true,
                    false => return Err(io::Error::other(LATE)),
                },
                written = say(&mut to, next, &self.held), if next.is_some() => {
                    self.wrote(written?);
                    flushed = next != Some(Next::Write);
                    said_all = next == Some(Next::End);
                }
                _ = self.client.readable(), if room => self.take(),
                read = from.read_buf(&mut back), if reads => heard_all = self.heard(read, said_all)?,
                _ = self.client.writable(), if tells => self.tell(&mut back),
                () = tokio::time::sleep(LOOK), if said_all && !confirmed => {}
            }
            if heard_all && back.is_empty() && !std::mem::replace(&mut told_all, true) {
                let _ = shutdown(self.client, Shutdown::Write); // it may be gone
            }
            if self.gone {
                back.clear();
            }
        }
    }

    fn has_room(&self) -> bool {
        !self.ended && self.held.len() < MOST
    }

    /// Takes what the client has written.
    fn take(&mut self) {
        match self.read() {
            Ok(0) => self.end(),
            Ok(_) => {
                if !std::mem::replace(&mut self.taken, true) {
                    Ledger::count(&self.ledger.early, 1);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.tail.is_some() => {}
            Err(error) => {
                self.short |= error.kind() == io::ErrorKind::WouldBlock;
                self.end();
                self.leave();
            }
        }
    }

    /// Reads a piece, no more than there is room for.
    fn read(&mut self) -> io::Result<usize> {
        let room = PIECE.min(MOST - self.held.len());
        self.held.reserve(room);
        self.client.try_read_buf(&mut (&mut self.held).limit(room))
    }

    fn end(&mut self) {
        (self.ended, self.tail) = (true, None);
        self.until.get_or_insert(Instant::now() + self.flush);
    }

    /// The client is gone; what it wrote is still taken, as it comes.
    fn leave(&mut self) {
        self.gone = true;
        self.until.get_or_insert(Instant::now() + self.flush);
    }

    /// Nothing comes any more; what the client wrote, as far as it has arrived, is still taken.
    fn cut(&mut self) {
        self.tail = None;
        self.leave();
        while self.has_room() {
            self.take();
        }
    }

    fn wrote(&mut self, written: usize) {
        Ledger::count(&self.ledger.sent, written as u64);
        self.held.advance(written);
    }

    /// Something of what the destination says; whether that was all. Many end TLS without a word once they were told that nothing more comes.
    fn heard(&mut self, read: io::Result<usize>, said_all: bool) -> io::Result<bool> {
        match read {
            Ok(read) => {
                Ledger::count(&self.ledger.received, read as u64);
                Ok(read == 0)
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && said_all => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn tell(&mut self, back: &mut BytesMut) {
        match self.client.try_write(back) {
            Ok(written) => back.advance(written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.leave(), // what it wrote before it broke off is read like all else
        }
    }
}

/// What is to be said to the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Write,
    Flush,
    /// Nothing more comes.
    End,
}

/// Says it, as far as that is possible at once; how many bytes were taken. Giving it up half-way loses nothing.
async fn say(to: &mut WriteHalf<Stream>, what: Option<Next>, held: &[u8]) -> io::Result<usize> {
    match what {
        Some(Next::Write) => to.write(held).await,
        Some(Next::Flush) => to.flush().await.map(|()| 0),
        Some(Next::End) => known(to.shutdown().await).map(|()| 0),
        None => std::future::pending().await,
    }
}

const LATE: &str = "it did not take all of it within `flush`";
const SHORT: &str =
    "it did not take all of it in time: the function had ended, and what was left in its own socket is gone";

/// A destination that is closed knows already that nothing more comes.
fn known(shut: io::Result<()>) -> io::Result<()> {
    match shut {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        other => other,
    }
}

/// Whether the destination's machine has confirmed all bytes, and the end after them.
///
/// # Errors
/// When it has reset the connection: that ends it as well, and confirms nothing.
fn has_all(tcp: &OwnedFd) -> io::Result<bool> {
    let ended = tcp_state(tcp).is_ok_and(|state| state != TcpState::Closing); // before the error: nothing comes in between
    match sockopt::socket_error(tcp)? {
        Err(error) => Err(error.into()),
        Ok(()) => Ok(ended),
    }
}
