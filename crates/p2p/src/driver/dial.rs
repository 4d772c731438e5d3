//! Dials to a peer, after an opening of the own NAT.

use std::io;
use std::net::TcpStream as StdStream;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::connect;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

use crate::punch::agent::DialOpening;
use crate::punch::candidate::PairKey;

use super::hop_limit::{accept_all_packets, ignore_expiry, set_hop_limit};
use super::local_ports;

/// Time for the ICMP error of an expired SYN.
const EXPIRY_ERROR_TIMEOUT: Duration = Duration::from_millis(50);
/// Time for the rest of a handshake that the peer has begun.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// Dials from a reserved port.
pub(super) async fn dial_peer(
    key: PairKey,
    timeout: Duration,
    opening: Option<DialOpening>,
) -> io::Result<TcpStream> {
    let pending = match opening {
        Some(opening) => match open_nat(key, opening).await {
            Ok((stream, true)) => return Ok(stream),
            Ok((stream, false)) => Some(stream),
            Err(error) => {
                tracing::trace!(?key, %error, "driver: opening failed");
                None
            }
        },
        None => None,
    };
    // Between the two sockets the peer's SYN would meet the listener, whose answer has another
    // sequence number than the NAT knows (decision 34). So the next one is ready first.
    let socket = local_ports::open_on_port(key.base)?;
    drop(pending);
    let dial = TcpSocket::from_std_stream(socket).connect(key.remote);
    tokio::time::timeout(timeout, dial).await?
}

/// Sends the opening SYN, and waits for the peer's. Returns the socket, and whether it is connected.
async fn open_nat(key: PairKey, opening: DialOpening) -> io::Result<(TcpStream, bool)> {
    // A new socket per dial: a failed one cannot be connected again portably (connect(2)).
    let socket = local_ports::open_on_port(key.base)?;
    let stream = send_opening_syn(socket, key, opening.hop_limit)?;
    let is_connected = is_connected(&stream, key, Instant::now() + opening.period).await?;
    Ok((stream, is_connected))
}

fn send_opening_syn(socket: StdStream, key: PairKey, hop_limit: u8) -> io::Result<TcpStream> {
    ignore_expiry(&socket, key.base)?;
    set_hop_limit(&socket, key.base, Some(hop_limit))?;
    match connect(&socket, &key.remote) {
        Ok(()) | Err(Errno::INPROGRESS) => (),
        Err(error) => return Err(error.into()),
    }
    // An answer to the peer's SYN must reach the peer.
    set_hop_limit(&socket, key.base, None)?;
    TcpStream::from_std(socket)
}

/// Waits for the peer's SYN, and for the rest of the handshake. `false`: it did not come.
async fn is_connected(stream: &TcpStream, key: PairKey, end: Instant) -> io::Result<bool> {
    if key.base.is_ipv6() {
        let errors_end = end.min(Instant::now() + EXPIRY_ERROR_TIMEOUT);
        // Readiness stays until it is asked for again.
        let _ = tokio::time::timeout_at(errors_end, stream.writable()).await;
        accept_all_packets(stream, key.base)?;
    }
    match tokio::time::timeout_at(end, stream.writable()).await {
        Ok(ready) => ready?,
        // In `SYN-SENT` a socket has no peer address (Linux `inet_getname`). Later the NAT knows
        // its sequence number, and no other dial could replace it.
        Err(_) if stream.peer_addr().is_err() => return Ok(false),
        Err(_) => tokio::time::timeout(HANDSHAKE_TIMEOUT, stream.writable()).await??,
    }
    stream.take_error()?.map_or(Ok(true), Err)
}
