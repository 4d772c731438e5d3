//! Listeners on the reserved TCP ports.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::Sleep;

use super::local_ports;

/// Connections that the kernel queues until they are accepted.
const LISTEN_BACKLOG: u32 = 16;
/// Pause after a failed accept: too many open files fail the next one, too (accept(2)).
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Listeners of a session, one per port.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    all: Vec<(SocketAddr, TcpListener)>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Listeners {
    /// Accepts connections on a reserved port.
    pub(super) fn listen(&mut self, base: SocketAddr) -> io::Result<()> {
        let socket = TcpSocket::from_std_stream(local_ports::open_on_port(base)?);
        self.all.push((base, socket.listen(LISTEN_BACKLOG)?));
        Ok(())
    }

    /// Polls the next connection: its base, its remote address and its stream.
    pub(super) fn poll_accept(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<(SocketAddr, SocketAddr, TcpStream)> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            match ready!(self.poll_once(cx)) {
                Ok(accepted) => return Poll::Ready(accepted),
                Err(error) => {
                    tracing::debug!(%error, "driver: accept failed, retrying");
                    // A failed accept registers no waker: without the timer nothing would wake the
                    // loop.
                    self.pause = Some(Box::pin(tokio::time::sleep(ACCEPT_RETRY_INTERVAL)));
                }
            }
        }
    }

    fn poll_once(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<(SocketAddr, SocketAddr, TcpStream)>> {
        for (base, listener) in &self.all {
            if let Poll::Ready(accepted) = listener.poll_accept(cx) {
                return Poll::Ready(accepted.map(|(stream, remote)| (*base, remote, stream)));
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::LocalPorts;
    use crate::punch::Transport;
    use rustix::net::{Shutdown, listen, shutdown};
    use std::future::poll_fn;
    use std::os::fd::AsFd;
    use tokio::sync::mpsc;

    const DEADLINE: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_failed_accept_is_retried() {
        let ports = LocalPorts::bind(&[Transport::Tcp]).unwrap();
        let base = ports.bound_addrs().find(SocketAddr::is_ipv4).unwrap();
        let mut listeners = Listeners::default();
        listeners.listen(base).unwrap();
        let socket = listeners.all[0].1.as_fd().try_clone_to_owned().unwrap();
        // A listener that was shut down refuses to accept (EINVAL) until it listens again.
        shutdown(&socket, Shutdown::Read).unwrap();
        let (polled, mut polls) = mpsc::unbounded_channel();
        let accepted = tokio::spawn(poll_fn(move |cx| {
            let accepted = listeners.poll_accept(cx);
            let _ = polled.send(());
            accepted
        }));
        // The first poll registers, the second one fails.
        for _ in 0..2 {
            let poll = tokio::time::timeout(DEADLINE, polls.recv()).await;
            poll.unwrap().unwrap();
        }
        listen(&socket, 1).unwrap();
        let near = std::net::TcpStream::connect(("127.0.0.1", base.port())).unwrap();
        let accepted = tokio::time::timeout(DEADLINE, accepted).await.unwrap();
        let (_, remote, _) = accepted.unwrap();
        assert_eq!(remote, near.local_addr().unwrap());
    }
}
