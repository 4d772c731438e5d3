//! TCP sockets: listeners, dials, and connections whose peer is not authenticated yet.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::punch::agent::DialOpening;
use crate::punch::candidate::PairKey;
use crate::punch::probe::PROBE_BYTES;
use crate::punch::{AgentEvent, Transport};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};

use super::listeners::Listeners;
use super::{dial, local_ports};

/// Time to write the last probe.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// TCP sockets of a session.
#[derive(Debug)]
pub(super) struct TcpStreams {
    /// Bound sockets, which reserve the ports.
    bound: Vec<(SocketAddr, OwnedFd)>,
    listeners: Listeners,
    dials: JoinSet<(PairKey, io::Result<TcpStream>)>,
    dial_handles: HashMap<PairKey, AbortHandle>,
    open: VecDeque<ProbedConnection>,
    events: VecDeque<AgentEvent>,
}

/// Connection of which only probes are read, one at a time.
#[derive(Debug)]
struct ProbedConnection {
    key: PairKey,
    stream: TcpStream,
    probe: [u8; PROBE_BYTES],
    filled: usize,
    outgoing: Vec<u8>,
}

impl TcpStreams {
    pub(super) fn new(bound: Vec<(SocketAddr, OwnedFd)>) -> Self {
        let (listeners, dial_handles, open, events) = Default::default();
        Self {
            bound,
            listeners,
            dials: JoinSet::new(),
            dial_handles,
            open,
            events,
        }
    }

    /// Polls the next event.
    pub(super) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<AgentEvent> {
        if let Some(event) = self.events.pop_front() {
            return Poll::Ready(event);
        }
        if let Poll::Ready(event) = self.poll_dials(cx) {
            return Poll::Ready(event);
        }
        if let Poll::Ready(event) = self.poll_listeners(cx) {
            return Poll::Ready(event);
        }
        self.poll_open(cx)
    }

    fn poll_dials(&mut self, cx: &mut Context<'_>) -> Poll<AgentEvent> {
        while let Some(done) = ready!(self.dials.poll_join_next(cx)) {
            let Ok((key, dialled)) = done else { continue }; // the dial was aborted
            self.dial_handles.remove(&key);
            match dialled.and_then(|stream| self.add_connection(key, stream)) {
                Ok(event) => return Poll::Ready(event),
                // The peer's dial came first: it is the same connection.
                Err(_) if self.is_open(&key) => (),
                Err(error) => {
                    tracing::trace!(?key, %error, "driver: dial failed");
                    return Poll::Ready(AgentEvent::Disconnected(key));
                }
            }
        }
        Poll::Pending
    }

    fn poll_listeners(&mut self, cx: &mut Context<'_>) -> Poll<AgentEvent> {
        loop {
            let (base, remote, stream) = ready!(self.listeners.poll_accept(cx));
            let key = PairKey {
                transport: Transport::Tcp,
                base,
                remote,
            };
            match self.add_connection(key, stream) {
                Ok(event) => return Poll::Ready(event),
                Err(error) => tracing::debug!(?key, %error, "driver: connection ended at once"),
            }
        }
    }

    fn add_connection(&mut self, key: PairKey, stream: TcpStream) -> io::Result<AgentEvent> {
        local_ports::prepare_stream(&stream)?;
        let count_before = self.open.len();
        // The peer has ended the connection and dialled again before this side noticed.
        self.open.retain(|connection| connection.key != key);
        let ended = self.open.len() < count_before;
        self.open.push_back(ProbedConnection {
            key,
            stream,
            probe: [0; PROBE_BYTES],
            filled: 0,
            outgoing: Vec::new(),
        });
        if !ended {
            return Ok(AgentEvent::Connected(key));
        }
        self.events.push_back(AgentEvent::Connected(key));
        Ok(AgentEvent::Disconnected(key))
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<AgentEvent> {
        for _ in 0..self.open.len() {
            // Each connection gets its turn first: a flooding peer cannot starve the others.
            self.open.rotate_left(1);
            let Some(connection) = self.open.front_mut() else {
                break;
            };
            match connection.poll_probe(cx) {
                Poll::Pending => (),
                Poll::Ready(Ok(bytes)) => {
                    return Poll::Ready(AgentEvent::Read {
                        key: connection.key,
                        bytes,
                    });
                }
                Poll::Ready(Err(_)) => {
                    let key = connection.key;
                    self.open.pop_front();
                    return Poll::Ready(AgentEvent::Disconnected(key));
                }
            }
        }
        Poll::Pending
    }

    fn is_open(&self, key: &PairKey) -> bool {
        self.open.iter().any(|connection| connection.key == *key)
    }

    /// Accepts connections on a reserved port.
    pub(super) fn listen(&mut self, base: SocketAddr) -> io::Result<()> {
        if !self.bound.iter().any(|(bound, _)| *bound == base) {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        self.listeners.listen(base)
    }

    /// Dials from a reserved port.
    pub(super) fn dial(&mut self, key: PairKey, timeout: Duration, opening: Option<DialOpening>) {
        let dial = dial::dial_peer(key, timeout, opening);
        let handle = self.dials.spawn(async move { (key, dial.await) });
        self.dial_handles.insert(key, handle);
    }

    /// Queues a probe behind those that are not written yet.
    pub(super) fn write(&mut self, key: PairKey, bytes: &[u8]) {
        let Some(connection) = self
            .open
            .iter_mut()
            .find(|connection| connection.key == key)
        else {
            return;
        };
        connection.outgoing.extend_from_slice(bytes);
    }

    pub(super) fn close(&mut self, key: PairKey) {
        self.open.retain(|connection| connection.key != key);
        if let Some(dial) = self.dial_handles.remove(&key) {
            dial.abort();
        }
    }

    /// Hands a connection over, after its queued probes are written.
    pub(super) async fn take_stream(&mut self, key: PairKey) -> io::Result<TcpStream> {
        let at = self
            .open
            .iter()
            .position(|connection| connection.key == key);
        let connection = at
            .and_then(|at| self.open.remove(at))
            .ok_or(io::ErrorKind::NotConnected)?;
        // A partial probe in the buffer would be missing from the bytes that TLS reads.
        let ProbedConnection {
            mut stream,
            filled: 0,
            outgoing: out,
            ..
        } = connection
        else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "partial probe at the handover of the connection",
            ));
        };
        tokio::time::timeout(LAST_WRITE_TIMEOUT, stream.write_all(&out)).await??;
        // From here on the connection must not be reset: it carries data.
        local_ports::restore_graceful_close(&stream)?;
        Ok(stream)
    }
}

impl ProbedConnection {
    /// Writes queued probes and reads one. Bytes that follow it stay in the kernel.
    fn poll_probe(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        while !self.outgoing.is_empty()
            && let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(cx, &self.outgoing)
        {
            // Dropping the written part moves the rest; probes are 100 bytes and few.
            self.outgoing.drain(..written?);
        }
        while self.filled < PROBE_BYTES {
            // Exactly the rest of one probe: a byte more could belong to TLS.
            let mut buf = ReadBuf::new(&mut self.probe[self.filled..]);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buf))?;
            let n = buf.filled().len();
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.filled += n;
        }
        self.filled = 0;
        Poll::Ready(Ok(self.probe.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn tcp_side() -> (TcpStreams, SocketAddr) {
        let bound = local_ports::LocalPorts::bind(&[Transport::Tcp])
            .unwrap()
            .tcp;
        let base = bound
            .iter()
            .map(|(base, _)| *base)
            .find(SocketAddr::is_ipv4)
            .unwrap();
        (TcpStreams::new(bound), base)
    }

    async fn next_event(side: &mut TcpStreams) -> AgentEvent {
        std::future::poll_fn(|cx| side.poll_event(cx)).await
    }

    /// Returns two listening sides, and the key of their connection on each.
    async fn connected_pair() -> [(TcpStreams, PairKey); 2] {
        let ((mut near, base), (mut far, port)) = (tcp_side(), tcp_side());
        near.listen(base).unwrap();
        far.listen(port).unwrap();
        let key = PairKey {
            transport: Transport::Tcp,
            base,
            remote: (Ipv4Addr::LOCALHOST, port.port()).into(),
        };
        near.dial(key, Duration::from_secs(5), None);
        assert_eq!(next_event(&mut near).await, AgentEvent::Connected(key));
        let AgentEvent::Connected(theirs) = next_event(&mut far).await else {
            panic!("nothing was accepted")
        };
        [(near, key), (far, theirs)]
    }

    /// Either side may drop the connection and dial again before the other side has noticed.
    #[tokio::test]
    async fn a_closed_connection_frees_its_addresses() {
        for again in [0, 1] {
            let mut sides = connected_pair().await;
            let (side, key) = &mut sides[again];
            side.close(*key);
            side.dial(*key, Duration::from_secs(5), None);
            assert_eq!(
                next_event(side).await,
                AgentEvent::Connected(*key),
                "side {again}"
            );
            let (other, theirs) = &mut sides[1 - again];
            assert_eq!(
                next_event(other).await,
                AgentEvent::Disconnected(*theirs),
                "side {again}"
            );
            assert_eq!(
                next_event(other).await,
                AgentEvent::Connected(*theirs),
                "side {again}"
            );
        }
    }
}
