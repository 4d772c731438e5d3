//! Bytes from one connection to another, both ways, as they are: ends and resets included.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown, sockopt};
use tokio::net::TcpStream;

use nearpath_connpool::counters::Ledger;

/// Bytes that are moved at a time.
const PIECE: usize = 64 << 10;

/// Pieces after which others have their turn.
const AT_A_TIME: u64 = 16;

thread_local! {
    /// Where bytes are between two system calls. One for all connections of the thread: an idle one needs no memory of its own.
    static BETWEEN: RefCell<Box<[u8]>> = RefCell::new(vec![0; PIECE].into());
}

/// Carries until both have ended. An end goes on as an end, so that each may still read after it has written all; anything else resets both.
///
/// # Errors
/// When one of them was reset, or the like.
pub(crate) async fn carry(client: &TcpStream, server: &TcpStream, ledger: &Ledger) -> io::Result<()> {
    let mut ends = Ends { client, server, orderly: false };
    let there = pour(client, server, &ledger.sent);
    let back = pour(server, client, &ledger.received);
    tokio::try_join!(there, back)?;
    ends.orderly = true;
    Ok(())
}

/// Has a connection end with a reset when it is closed.
pub(crate) fn reset_at_close(stream: impl AsFd) {
    let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO)); // it may be gone
}

/// Resets both unless all went well; also when the carrying is given up half-way.
struct Ends<'a> {
    client: &'a TcpStream,
    server: &'a TcpStream,
    orderly: bool,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if !self.orderly {
            reset_at_close(self.client);
            reset_at_close(self.server);
        }
    }
}

async fn pour(from: &TcpStream, to: &TcpStream, count: &Cell<u64>) -> io::Result<()> {
    for piece in 1u64.. {
        from.readable().await?;
        match BETWEEN.with_borrow_mut(|between| step(from, to, between)) {
            Ok(Step::End) => return end(to),
            Ok(Step::Moved(moved, rest)) => {
                Ledger::count(count, moved as u64);
                write_rest(to, &rest).await?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if piece % AT_A_TIME == 0 {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// What one look at the reading side brought.
enum Step {
    End,
    /// So many bytes were read, and these of them could not be written at once.
    Moved(usize, Vec<u8>),
}

fn step(from: &TcpStream, to: &TcpStream, between: &mut [u8]) -> io::Result<Step> {
    let read = from.try_read(between)?;
    if read == 0 {
        return Ok(Step::End);
    }
    let written = match to.try_write(&between[..read]) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        other => other?,
    };
    Ok(Step::Moved(read, between[written..read].to_vec()))
}

async fn write_rest(to: &TcpStream, mut rest: &[u8]) -> io::Result<()> {
    while !rest.is_empty() {
        to.writable().await?;
        match to.try_write(rest) {
            Ok(written) => rest = &rest[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Tells that nothing more comes. One that is closed already knows.
fn end(to: &TcpStream) -> io::Result<()> {
    match shutdown(to, Shutdown::Write) {
        Err(rustix::io::Errno::NOTCONN) => Ok(()),
        other => Ok(other?),
    }
}
