//! Bytes from one connection to another, both ways, as they are: ends and resets included.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown, sockopt};
use tokio::net::TcpStream;

use nearpath_connpool::counters::DestinationCounters;

/// Bytes that are moved at a time.
const MAX_CHUNK_BYTES: usize = 64 << 10;

/// Pieces after which others have their turn.
const MAX_CHUNKS_PER_TURN: u64 = 16;

thread_local! {
    /// Where bytes are between two system calls. One for all connections of the thread: an idle one needs no memory of its own.
    static BETWEEN: RefCell<Box<[u8]>> = RefCell::new(vec![0; MAX_CHUNK_BYTES].into());
}

/// Carries until both have ended. An end goes on as an end, so that each may still read after it has written all; anything else resets both.
///
/// # Errors
/// When one of them was reset, or the like.
pub(crate) async fn forward_both_ways(
    client: &TcpStream,
    server: &TcpStream,
    ledger: &DestinationCounters,
) -> io::Result<()> {
    let mut ends = ForwardGuard {
        client,
        server,
        ended_orderly: false,
    };
    let there = forward_one_way(client, server, &ledger.sent_bytes);
    let back = forward_one_way(server, client, &ledger.received_bytes);
    tokio::try_join!(there, back)?;
    ends.ended_orderly = true;
    Ok(())
}

/// Has a connection end with a reset when it is closed.
pub(crate) fn reset_at_close(stream: impl AsFd) {
    let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO)); // it may be gone
}

/// Resets both unless all went well; also when the carrying is given up half-way.
struct ForwardGuard<'a> {
    client: &'a TcpStream,
    server: &'a TcpStream,
    ended_orderly: bool,
}

impl Drop for ForwardGuard<'_> {
    fn drop(&mut self) {
        if !self.ended_orderly {
            reset_at_close(self.client);
            reset_at_close(self.server);
        }
    }
}

async fn forward_one_way(from: &TcpStream, to: &TcpStream, count: &Cell<u64>) -> io::Result<()> {
    for piece in 1u64.. {
        from.readable().await?;
        match BETWEEN.with_borrow_mut(|between| forward_chunk(from, to, between)) {
            Ok(ReadStep::End) => return shutdown_write(to),
            Ok(ReadStep::Moved(moved, rest)) => {
                DestinationCounters::increase(count, moved as u64);
                write_rest(to, &rest).await?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if piece % MAX_CHUNKS_PER_TURN == 0 {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// What one look at the reading side brought.
enum ReadStep {
    End,
    /// So many bytes were read, and these of them could not be written at once.
    Moved(usize, Vec<u8>),
}

fn forward_chunk(from: &TcpStream, to: &TcpStream, between: &mut [u8]) -> io::Result<ReadStep> {
    let read = from.try_read(between)?;
    if read == 0 {
        return Ok(ReadStep::End);
    }
    let written = match to.try_write(&between[..read]) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        other => other?,
    };
    Ok(ReadStep::Moved(read, between[written..read].to_vec()))
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
fn shutdown_write(to: &TcpStream) -> io::Result<()> {
    match shutdown(to, Shutdown::Write) {
        Err(rustix::io::Errno::NOTCONN) => Ok(()),
        other => Ok(other?),
    }
}
