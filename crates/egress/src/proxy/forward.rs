//! Forwards bytes between two connections, both ways, with closes and resets.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown, sockopt};
use tokio::io::Interest;
use tokio::net::TcpStream;

use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::fair_turn::MAX_TURN_BYTES;

/// Bytes read at a time.
const MAX_CHUNK_BYTES: usize = 64 << 10;

thread_local! {
    /// Buffer between two system calls, shared by all connections of the thread: an idle connection
    /// needs no memory.
    static FORWARD_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; MAX_CHUNK_BYTES].into());
}

/// Forwards until both sides have closed. A half-close is forwarded, so that each side may still
/// read after it has written. Anything else resets both.
///
/// # Errors
/// When a side was reset or failed.
pub(crate) async fn forward_both_ways(
    client: &TcpStream,
    server: &TcpStream,
    counters: &DestinationCounters,
) -> io::Result<()> {
    let mut guard = ForwardGuard {
        client,
        server,
        ended_orderly: false,
    };
    let to_server = forward_one_way(client, server, &counters.sent_bytes);
    let to_client = forward_one_way(server, client, &counters.received_bytes);
    tokio::try_join!(to_server, to_client)?;
    guard.ended_orderly = true;
    Ok(())
}

/// Makes a connection end with a reset when it is closed.
pub(crate) fn reset_at_close(stream: impl AsFd) {
    // The socket may be closed already.
    let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// Resets both sides unless they ended in order, also when the task is dropped.
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
    let mut turn_bytes = 0;
    loop {
        // No buffer is held during the wait; the shared one is used between two system calls.
        from.readable().await?;
        match FORWARD_BUFFER.with_borrow_mut(|buffer| forward_chunk(from, to, buffer)) {
            Ok(ReadStep::End) => return shutdown_write(to),
            Ok(ReadStep::Moved(moved, rest)) => {
                DestinationCounters::increase(count, moved as u64);
                write_rest(to, &rest).await?;
                turn_bytes += 2 * moved;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        // A fast pair must not delay the other connections of the thread.
        if turn_bytes >= MAX_TURN_BYTES {
            tokio::task::yield_now().await;
            turn_bytes = 0;
        }
    }
}

/// Result of one read.
enum ReadStep {
    End,
    /// Number of bytes read, and those of them that could not be written yet.
    Moved(usize, Vec<u8>),
}

fn forward_chunk(from: &TcpStream, to: &TcpStream, buffer: &mut [u8]) -> io::Result<ReadStep> {
    let read = read_available(from, buffer)?;
    if read == 0 {
        return Ok(ReadStep::End);
    }
    let written = match to.try_write(&buffer[..read]) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        other => other?,
    };
    // Copied, because the shared buffer serves other connections during the wait.
    Ok(ReadStep::Moved(read, buffer[written..read].to_vec()))
}

/// Reads once. A read that leaves space in the buffer has emptied the socket, so the next one waits
/// for an event instead of asking the kernel in vain.
fn read_available(from: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    let mut read = None;
    let tried = from.try_io(Interest::READABLE, || {
        let bytes = rustix::io::read(from, &mut *buffer)?;
        read = Some(bytes);
        match bytes {
            // The end of the stream stays readable.
            0 => Ok(()),
            _ if bytes == buffer.len() => Ok(()),
            // Tells the runtime that nothing more is there.
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    });
    match read {
        Some(bytes) => Ok(bytes),
        None => tried.map(|()| 0),
    }
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

/// Shuts down the write side, unless the connection is closed already.
fn shutdown_write(to: &TcpStream) -> io::Result<()> {
    match shutdown(to, Shutdown::Write) {
        Err(rustix::io::Errno::NOTCONN) => Ok(()),
        other => Ok(other?),
    }
}
