//! The socket of an endpoint: packets in, packets out.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram as Plain;
use std::time::{Duration, Instant};

use nearpath_types::log_limiter::LogLimiter;
use rustix::net::{SocketFlags, accept_with};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::mpsc;

use super::endpoint_socket::OwnedListener;
use super::endpoint_waker::EndpointWaker;
use crate::packet;
use crate::protocol::EndpointMessage;

/// Maximum number of packets that wait for an endpoint; a slower one is disconnected.
pub(super) const MAX_QUEUED_PACKETS: usize = 4096;

/// Pause after an accept that failed.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Number of a connection within the domain.
pub(super) type ConnectionKey = u64;

/// A packet to be sent, with its descriptors.
#[derive(Debug)]
pub(super) struct OutboundPacket {
    pub(super) bytes: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
    /// Waker of the endpoint, once it has a cell: it announces data on the socket.
    pub(super) waker: Option<EndpointWaker>,
}

/// Event of a socket.
#[derive(Debug)]
pub(super) enum SocketEvent {
    /// A process connected to a listener.
    Accepted(ConnectionKey, OwnedFd),
    /// An endpoint sent a message, with descriptors.
    Message(ConnectionKey, EndpointMessage, Vec<OwnedFd>),
    /// An endpoint sent data on its sockmap socket that it may not send.
    ForbiddenSend(ConnectionKey, Vec<u8>),
    /// An endpoint closed its socket; with the reason if it violated the protocol.
    Closed(ConnectionKey, Option<String>),
}

/// tokio has no seqpacket socket; its datagram type only provides readiness here.
pub(super) fn watch_readiness(socket: OwnedFd) -> io::Result<UnixDatagram> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    UnixDatagram::from_std(Plain::from(socket))
}

/// A socket that notifies its endpoint when it is dropped. A thread that sleeps in its cell reads
/// the socket only when notified.
struct NotifyingSocket {
    socket: Option<UnixDatagram>,
    waker: Option<EndpointWaker>,
}

impl Drop for NotifyingSocket {
    fn drop(&mut self) {
        // Closed first: the notified endpoint then reads the end of file.
        self.socket = None;
        self.waker.take().inspect(EndpointWaker::notify_control);
    }
}

/// Reads and writes until either side closes the socket.
pub(super) async fn serve_connection(
    key: ConnectionKey,
    socket: OwnedFd,
    packets: mpsc::Receiver<OutboundPacket>,
    events: mpsc::Sender<SocketEvent>,
) {
    let fault = match watch_readiness(socket) {
        Ok(socket) => {
            let mut line = NotifyingSocket {
                socket: Some(socket),
                waker: None,
            };
            exchange_packets(key, &mut line, packets, &events)
                .await
                .err()
                .map(|error| error.to_string())
        }
        Err(error) => Some(error.to_string()),
    };
    // Fails when the domain's task ended: then no one needs the event.
    let _ = events.send(SocketEvent::Closed(key, fault)).await;
}

async fn exchange_packets(
    key: ConnectionKey,
    line: &mut NotifyingSocket,
    mut packets: mpsc::Receiver<OutboundPacket>,
    events: &mpsc::Sender<SocketEvent>,
) -> io::Result<()> {
    let NotifyingSocket {
        socket: Some(socket),
        waker: bell,
    } = line
    else {
        return Ok(());
    };
    loop {
        tokio::select! {
            packet = socket.async_io(Interest::READABLE, || packet::receive_packet(socket.as_fd())) => {
                let Some(packet) = packet? else { return Ok(()) };
                let message = EndpointMessage::parse_packet(&packet.bytes);
                let message = message.map_err(|fault| io::Error::new(io::ErrorKind::InvalidData, fault))?;
                if let Some(message) = message && events.send(SocketEvent::Message(key, message, packet.descriptors)).await.is_err() {
                    return Ok(());
                }
            }
            queued = packets.recv() => {
                let Some(queued) = queued else { return Ok(()) };
                // Kept for the drop: the end of the task must wake the endpoint, too.
                *bell = queued.waker.clone().or(bell.take());
                match write_packet(socket, &queued).await {
                    // A peer that left is no protocol violation.
                    Err(error) if is_hang_up(&error) => return Ok(()),
                    written => written?,
                }
                // After the write: a thread in its cell reads the socket only when notified.
                queued.waker.inspect(EndpointWaker::notify_control);
            }
        }
    }
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

async fn write_packet(socket: &UnixDatagram, queued: &OutboundPacket) -> io::Result<()> {
    let borrowed: Vec<_> = queued.descriptors.iter().map(AsFd::as_fd).collect();
    let send = || packet::send_bytes(socket.as_fd(), &queued.bytes, &borrowed);
    socket.async_io(Interest::WRITABLE, send).await
}

/// Accepts connections until the listener fails or the domain ends.
pub(super) async fn accept_connections(
    key: ConnectionKey,
    listener: OwnedListener,
    events: mpsc::Sender<SocketEvent>,
) -> io::Result<()> {
    let socket = watch_readiness(listener.socket.try_clone()?)?;
    let mut refusals = LogLimiter::default();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        let accepted = socket
            .async_io(Interest::READABLE, || {
                Ok(accept_with(socket.as_fd(), flags)?)
            })
            .await;
        // A process without free descriptors has some again later (accept(2)).
        let Ok(came) = accepted else {
            tokio::time::sleep(ACCEPT_BACKOFF).await;
            continue;
        };
        // The file's mode keeps others out; this holds where a folder or a mode was changed.
        if !listener.admits(&came).unwrap_or(false) {
            if let Some(suppressed) = refusals.take_due((), Instant::now()) {
                tracing::warn!(
                    suppressed,
                    "a process of another user connected to an instance's dispatch socket"
                );
            }
            continue;
        }
        if events.send(SocketEvent::Accepted(key, came)).await.is_err() {
            return Ok(());
        }
    }
}
