//! UDP socket of a QUIC endpoint, with fewer wake-ups and system calls than quinn's own.
//!
//! epoll reports a socket as writable whenever a datagram has left its buffer, also to a thread that does
//! not wait for room: on loopback, one wake-up for each datagram that the peer reads. So this socket is
//! watched for reading alone. It is watched for writing while a send waits for room.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, UdpPoller};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Opens an endpoint on a socket; without `server` it accepts no connections. Must run inside a tokio
/// runtime.
///
/// # Errors
/// When the socket cannot be used.
pub fn open_endpoint(
    config: EndpointConfig,
    server: Option<ServerConfig>,
    socket: UdpSocket,
) -> io::Result<Endpoint> {
    let socket = Arc::new(DatagramSocket::new(socket)?);
    Endpoint::new_with_abstract_socket(config, server, socket, Arc::new(TokioRuntime))
}

/// Socket that is watched for reading.
#[derive(Debug)]
struct DatagramSocket {
    socket: AsyncFd<UdpSocket>,
    state: UdpSocketState,
    /// The last send found no room.
    is_full: AtomicBool,
}

impl DatagramSocket {
    fn new(socket: UdpSocket) -> io::Result<Self> {
        Ok(Self {
            // Sets the socket non-blocking.
            state: UdpSocketState::new((&socket).into())?,
            socket: watch(socket, Interest::READABLE)?,
            is_full: AtomicBool::new(false),
        })
    }
}

#[expect(
    deprecated,
    reason = "its successor is unsafe for descriptors of unknown safety; this one is owned"
)]
fn watch(socket: UdpSocket, interest: Interest) -> io::Result<AsyncFd<UdpSocket>> {
    AsyncFd::with_interest(socket, interest)
}

impl AsyncUdpSocket for DatagramSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(RoomPoller {
            socket: self,
            watched: None,
        })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let sent = self.state.send(self.socket.get_ref().into(), transmit);
        if is_would_block(&sent) {
            // Relaxed here and below: the task that reads it is the one that has set it, or one that
            // finds out by a send of its own.
            self.is_full.store(true, Ordering::Relaxed);
        }
        sent
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            // Taken before the read: what arrives later is a new event, which this guard cannot clear.
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            let received = self.state.recv(self.socket.get_ref().into(), bufs, meta);
            match received {
                // A batch that is not full has emptied the socket. quinn would ask once more.
                Ok(count) if count < bufs.len() => ready.clear_ready(),
                Err(_) if is_would_block(&received) => {
                    ready.clear_ready();
                    continue;
                }
                Ok(_) | Err(_) => {}
            }
            return Poll::Ready(received);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.get_ref().local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }
}

fn is_would_block<T>(result: &io::Result<T>) -> bool {
    let error = result.as_ref().err();
    error.is_some_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Waits for room in the send buffer.
#[derive(Debug)]
struct RoomPoller {
    socket: Arc<DatagramSocket>,
    /// The same socket, watched for writing; set while a send waits.
    watched: Option<AsyncFd<UdpSocket>>,
}

impl UdpPoller for RoomPoller {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { socket, watched } = self.get_mut();
        if !socket.is_full.load(Ordering::Relaxed) {
            *watched = None;
            return Poll::Ready(Ok(()));
        }
        if watched.is_none() {
            let same = socket.socket.get_ref().try_clone()?;
            *watched = Some(watch(same, Interest::WRITABLE)?);
        }
        if let Some(watched) = watched {
            let _room = ready!(watched.poll_write_ready(cx))?;
        }
        // Further sends find out by themselves whether there still is room.
        socket.is_full.store(false, Ordering::Relaxed);
        *watched = None;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    fn bind() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").unwrap()
    }

    async fn receive(socket: &DatagramSocket) -> usize {
        let mut bytes = [0; 2048];
        let (mut bufs, mut meta) = ([IoSliceMut::new(&mut bytes)], [RecvMeta::default()]);
        let received = poll_fn(|cx| socket.poll_recv(cx, &mut bufs, &mut meta)).await;
        assert_eq!(received.unwrap(), 1);
        meta[0].len
    }

    #[tokio::test]
    async fn each_datagram_is_received_whenever_it_comes() {
        let (plain, sender) = (bind(), bind());
        let addr = plain.local_addr().unwrap();
        let socket = DatagramSocket::new(plain).unwrap();
        for length in [1, 2, 3] {
            sender.send_to(&[0; 8][..length], addr).unwrap();
            assert_eq!(receive(&socket).await, length);
        }
        // While nothing is there, a receiver waits.
        let waiting = receive(&socket);
        let sending = async {
            tokio::task::yield_now().await;
            sender.send_to(&[0; 8], addr).unwrap();
        };
        assert_eq!(tokio::join!(waiting, sending).0, 8);
    }

    #[tokio::test]
    async fn a_full_socket_waits_for_room_and_no_other_does() {
        let (receiver, plain) = (bind(), bind());
        let destination = receiver.local_addr().unwrap();
        let socket = Arc::new(DatagramSocket::new(plain).unwrap());
        let mut poller = socket.clone().create_io_poller();
        let send = || {
            let transmit = Transmit {
                destination,
                ecn: None,
                contents: &[0; 1000],
                segment_size: None,
                src_ip: None,
            };
            socket.try_send(&transmit)
        };
        poll_fn(|cx| poller.as_mut().poll_writable(cx))
            .await
            .unwrap();
        send().unwrap();
        // As if the kernel had reported a full send buffer.
        socket.is_full.store(true, Ordering::Relaxed);
        poll_fn(|cx| poller.as_mut().poll_writable(cx))
            .await
            .unwrap();
        assert!(!socket.is_full.load(Ordering::Relaxed));
        send().unwrap();
    }
}
