//! Calls of a TCP callee with blocking sockets: connections, single bytes, and bulk.

use std::io::{self, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};

use crate::load::MeasureWindow;
use crate::tally::{RequestFailure, RequestTally};

/// Length of a write of the bulk.
const WRITE_BYTES: usize = 64 << 10;
/// Writes of a megabyte, which is one counted call.
const MEGABYTE_WRITES: usize = (1 << 20) / WRITE_BYTES;
/// Time limit of a read or write: a callee that has ended must not hold up its caller.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(30);

/// Makes calls in sequence until the window ends.
pub(super) fn repeat_calls(
    window: MeasureWindow,
    mut call: impl FnMut() -> Result<Duration, RequestFailure>,
) -> RequestTally {
    let mut tally = RequestTally::default();
    loop {
        // At least one call, also in an empty window: it shows that the path works.
        let outcome = call();
        let is_failed = outcome.is_err();
        let now = tokio::time::Instant::now();
        if window.contains_moment(now) {
            tally.record_outcome(outcome);
        }
        if now >= window.until {
            return tally;
        }
        if is_failed {
            std::thread::sleep(Duration::from_millis(1)); // no attempts at full speed
        }
    }
}

/// Opens and closes connections. The time is that of `socket()`, `connect()` and `close()`.
pub(super) fn open_connections(addr: SocketAddrV4, window: MeasureWindow) -> RequestTally {
    repeat_calls(window, || open_connection(addr).map_err(to_failure))
}

fn open_connection(addr: SocketAddrV4) -> io::Result<Duration> {
    let opening = Instant::now();
    let mut stream = TcpStream::connect(addr)?;
    // The wait for the callee below is no part of the time.
    let opened = opening.elapsed();
    // The callee closes first. So it has accepted, and its queue never overflows.
    stream.set_read_timeout(Some(SOCKET_TIMEOUT))?;
    // An end or a reset: both tell that the callee has seen the connection.
    stream.read_exact(&mut [0; 1]).ok();
    // A reset leaves neither side in TIME_WAIT, which would use up the ports.
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    let closing = Instant::now();
    drop(stream);
    Ok(opened + closing.elapsed())
}

/// Sends single bytes, each after the answer to the last one.
pub(super) fn exchange_bytes(
    addr: SocketAddrV4,
    window: MeasureWindow,
) -> io::Result<RequestTally> {
    let mut stream = open_stream(addr)?;
    let call = || exchange_byte(&mut stream).map_err(to_failure);
    Ok(repeat_calls(window, call))
}

/// Connects and exchanges one byte. The time is from before the connection to the answer.
pub(super) fn exchange_once(addr: SocketAddrV4) -> RequestTally {
    let (mut tally, started) = (RequestTally::default(), Instant::now());
    let answered = open_stream(addr).and_then(|mut stream| exchange_byte(&mut stream));
    tally.record_outcome(answered.map(|_| started.elapsed()).map_err(to_failure));
    tally
}

fn exchange_byte(stream: &mut TcpStream) -> io::Result<Duration> {
    let sent = Instant::now();
    // One byte: the payload costs nothing beside the two wake-ups.
    stream.write_all(b"x")?;
    stream.read_exact(&mut [0; 1])?;
    Ok(sent.elapsed())
}

/// Sends megabytes as fast as the callee reads them. Each is one call.
pub(super) fn send_megabytes(
    addr: SocketAddrV4,
    window: MeasureWindow,
) -> io::Result<RequestTally> {
    let (mut stream, bytes) = (open_stream(addr)?, vec![b'x'; WRITE_BYTES]);
    let call = || send_megabyte(&mut stream, &bytes).map_err(to_failure);
    Ok(repeat_calls(window, call))
}

fn send_megabyte(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<Duration> {
    let started = Instant::now();
    // Each returns when the socket has room: the callee sets the pace.
    for _ in 0..MEGABYTE_WRITES {
        stream.write_all(bytes)?;
    }
    Ok(started.elapsed())
}

/// Attempts connections that the kernel denies. Any other result is a failure.
pub(super) fn attempt_denied(
    addr: SocketAddrV4,
    window: MeasureWindow,
) -> io::Result<RequestTally> {
    // One socket: a denied one is as it was before.
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    Ok(repeat_calls(window, || {
        let started = Instant::now();
        match connect(&socket, &addr) {
            Err(Errno::PERM) => Ok(started.elapsed()),
            // A permitted one would be a hole in the permissions, not a slow denial.
            Ok(()) => Err(RequestFailure::Body),
            Err(_) => Err(RequestFailure::Connect),
        }
    }))
}

fn open_stream(addr: SocketAddrV4) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(addr)?;
    // Nagle's algorithm would wait for the acknowledgement of the last byte.
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SOCKET_TIMEOUT))?;
    stream.set_write_timeout(Some(SOCKET_TIMEOUT))?;
    Ok(stream)
}

fn to_failure(error: io::Error) -> RequestFailure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::PermissionDenied => {
            RequestFailure::Connect
        }
        // Linux returns the first one for a time limit of a socket.
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => RequestFailure::Timeout,
        _ => RequestFailure::Broken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::by_name::socket_server::SocketServer;

    fn short_window() -> MeasureWindow {
        MeasureWindow::starting_after(Duration::ZERO, Duration::from_millis(50))
    }

    #[test]
    fn each_port_serves_its_calls() {
        let server = SocketServer::bind([0; 3]).unwrap();
        let [connect, echo, sink] = server.local_addrs().unwrap();
        server.serve_in_threads();
        let counts = [
            open_connections(connect, short_window()),
            exchange_bytes(echo, short_window()).unwrap(),
            send_megabytes(sink, short_window()).unwrap(),
        ];
        for tally in counts {
            assert!(tally.answered_count() > 0, "{:?}", tally.failures_by_kind());
            assert_eq!(tally.failed_count(), 0, "{:?}", tally.failures_by_kind());
        }
    }

    #[test]
    fn a_permitted_connection_is_no_denied_one() {
        let server = SocketServer::bind([0; 3]).unwrap();
        let [addr, ..] = server.local_addrs().unwrap();
        let tally = attempt_denied(addr, short_window()).unwrap();
        assert_eq!(tally.answered_count(), 0);
    }
}
