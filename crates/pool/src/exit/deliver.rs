//! Bytes that the node takes at once and delivers when it can (`writes=async`), also when the function that wrote them is gone.

use std::io;
use std::pin::Pin;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, BytesMut};
use nearpath_kernel::sockets::{State, state};
use nearpath_types::egress::Writes;
use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;
use tokio::sync::watch;

#[cfg(test)]
mod tests;

use super::carry::reset_at_close;
use super::guests::Pass;
use crate::adapters::pump::sleep;
use crate::keeper::{Lease, NoConnection};
use crate::ledger::Ledger;

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
    flush: Duration,
    /// Taken from the client, and not written yet.
    held: BytesMut,
    /// Something was taken, at any time.
    taken: bool,
    /// The client writes no more.
    ended: bool,
    /// Nor does it read.
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

type Connect<'a> = Pin<Box<dyn Future<Output = Result<Lease, NoConnection>> + 'a>>;

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
        let lease = match self.connected(connect).await {
            Ok(lease) => lease,
            Err(why) => return Err(self.lost(why)),
        };
        self.pass.waiting.end();
        let Lease { stream, gone: _gone } = lease;
        match self.carry(&stream).await {
            Ok(()) => Ok(()),
            Err(error) => {
                reset_at_close(&stream);
                Err(self.lost(error.to_string()))
            }
        }
    }

    fn lost(&self, why: String) -> Lost {
        Lost { why, taken: self.taken, gone: self.gone || self.ended }
    }

    /// A connection; what the client writes meanwhile is taken.
    async fn connected(&mut self, mut connect: Connect<'_>) -> Result<Lease, String> {
        loop {
            let (until, room) = (self.until, self.has_room());
            let mut here = self.here.clone();
            tokio::select! {
                biased;
                found = &mut connect => return found.map_err(|error| format!("no connection to {error}")),
                _ = here.changed(), if !self.gone => self.leave(),
                () = sleep(until) => return Err(LATE.to_owned()),
                _ = self.client.readable(), if room => self.take(),
            }
            if self.gone && !self.taken {
                return Err("the function left before it wrote anything".to_owned());
            }
        }
    }

    /// Both ways, until nothing is left to be said.
    async fn carry(&mut self, server: &TcpStream) -> io::Result<()> {
        let (mut said_all, mut heard_all, mut told_all, mut confirmed) = (false, false, false, false);
        let mut back = BytesMut::new();
        loop {
            if self.held.is_empty() && self.ended && !said_all {
                shut(server)?;
                said_all = true;
            }
            confirmed |= said_all && has_all(server)?;
            if confirmed && (heard_all && back.is_empty() || self.gone) {
                return Ok(());
            }
            let (until, room) = (self.until.filter(|_| !confirmed), self.has_room());
            let (writes, reads, tells) = (!self.held.is_empty(), !heard_all && back.len() < PIECE, !back.is_empty());
            let mut here = self.here.clone();
            tokio::select! {
                biased;
                _ = here.changed(), if !self.gone => self.leave(),
                () = sleep(until) => match said_all && has_all(server)? {
                    true => confirmed = true,
                    false => return Err(io::Error::other(LATE)),
                },
                _ = server.writable(), if writes => self.write(server)?,
                _ = self.client.readable(), if room => self.take(),
                _ = server.readable(), if reads => heard_all = self.hear(server, &mut back)?,
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
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.gone => {}
            Err(_) => self.leave(),
        }
    }

    /// Reads a piece, no more than there is room for.
    fn read(&mut self) -> io::Result<usize> {
        let room = PIECE.min(MOST - self.held.len());
        self.held.reserve(room);
        self.client.try_read_buf(&mut (&mut self.held).limit(room))
    }

    fn end(&mut self) {
        self.ended = true;
        self.until.get_or_insert(Instant::now() + self.flush);
    }

    /// The client is gone; what it wrote, as far as it has arrived, is still taken.
    fn leave(&mut self) {
        while self.has_room() {
            let before = self.held.len();
            if !self.read().is_ok_and(|read| read > 0) {
                self.ended = true;
            }
            self.taken |= self.held.len() > before;
        }
        self.gone = true;
        self.until.get_or_insert(Instant::now() + self.flush);
    }

    fn write(&mut self, server: &TcpStream) -> io::Result<()> {
        match server.try_write(&self.held) {
            Ok(written) => {
                Ledger::count(&self.ledger.sent, written as u64);
                self.held.advance(written);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What the destination says; whether that was all.
    fn hear(&mut self, server: &TcpStream, back: &mut BytesMut) -> io::Result<bool> {
        back.reserve(PIECE);
        match server.try_read_buf(back) {
            Ok(0) => Ok(true),
            Ok(read) => {
                Ledger::count(&self.ledger.received, read as u64);
                Ok(false)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn tell(&mut self, back: &mut BytesMut) {
        match self.client.try_write(back) {
            Ok(written) => back.advance(written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.leave(),
        }
    }
}

const LATE: &str = "it did not take all of it within `flush`";

/// Tells a destination that nothing more comes. One that is closed already knows.
fn shut(server: &TcpStream) -> io::Result<()> {
    match shutdown(server, Shutdown::Write) {
        Err(rustix::io::Errno::NOTCONN) => Ok(()),
        other => Ok(other?),
    }
}

/// Whether the destination's machine has confirmed all bytes, and the end after them.
///
/// # Errors
/// When it has reset the connection: that ends it as well, and confirms nothing.
fn has_all(server: &TcpStream) -> io::Result<bool> {
    let ended = state(server).is_ok_and(|state| state != State::Ending); // before the error: nothing comes in between
    match server.take_error()? {
        Some(error) => Err(error),
        None => Ok(ended),
    }
}
