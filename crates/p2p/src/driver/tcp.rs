//! TCP: listeners, dials and connections of which nobody knows yet who is at the other end.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::punch::candidate::Key;
use crate::punch::probe::SIZE;
use crate::punch::{Event, Transport};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use super::local_ports;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: u32 = 16;
/// The last probe has so long to be written.
const LAST_WRITE: Duration = Duration::from_secs(2);

/// All of them.
#[derive(Debug)]
pub(super) struct Streams {
    /// They keep the ports.
    bound: Vec<(SocketAddr, OwnedFd)>,
    listeners: Vec<(SocketAddr, TcpListener)>,
    dials: JoinSet<(Key, io::Result<TcpStream>)>,
    dialling: HashMap<Key, AbortHandle>,
    open: VecDeque<Connection>,
    events: VecDeque<Event>,
}

/// A connection of which only probes are read, one at a time.
#[derive(Debug)]
struct Connection {
    key: Key,
    stream: TcpStream,
    piece: [u8; SIZE],
    filled: usize,
    out: Vec<u8>,
}

impl Streams {
    pub(super) fn new(bound: Vec<(SocketAddr, OwnedFd)>) -> Self {
        let (listeners, dialling, open, events) = Default::default();
        Self { bound, listeners, dials: JoinSet::new(), dialling, open, events }
    }

    /// The next event.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
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

    fn poll_dials(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        while let Some(done) = ready!(self.dials.poll_join_next(cx)) {
            let Ok((key, dialled)) = done else { continue }; // it was broken off
            self.dialling.remove(&key);
            match dialled.and_then(|stream| self.opened(key, stream)) {
                Ok(event) => return Poll::Ready(event),
                Err(_) if self.is_open(&key) => (), // the peer's dial came first: it is the same connection
                Err(error) => {
                    tracing::trace!(?key, %error, "a dial came to nothing");
                    return Poll::Ready(Event::Ended(key));
                }
            }
        }
        Poll::Pending
    }

    fn poll_listeners(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        for at in 0..self.listeners.len() {
            while let Poll::Ready(Ok((stream, remote))) = self.listeners[at].1.poll_accept(cx) {
                let key = Key { transport: Transport::Tcp, base: self.listeners[at].0, remote };
                match self.opened(key, stream) {
                    Ok(event) => return Poll::Ready(event),
                    Err(error) => tracing::debug!(?key, %error, "a connection ended as it began"),
                }
            }
        }
        Poll::Pending
    }

    fn opened(&mut self, key: Key, stream: TcpStream) -> io::Result<Event> {
        local_ports::prepare(&stream)?;
        let was = self.open.len();
        self.open.retain(|connection| connection.key != key); // the peer has ended it and begun anew, before it was looked at here
        let ended = self.open.len() < was;
        self.open.push_back(Connection { key, stream, piece: [0; SIZE], filled: 0, out: Vec::new() });
        if !ended {
            return Ok(Event::Connected(key));
        }
        self.events.push_back(Event::Connected(key));
        Ok(Event::Ended(key))
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        for _ in 0..self.open.len() {
            self.open.rotate_left(1);
            let Some(connection) = self.open.front_mut() else { break };
            match connection.poll(cx) {
                Poll::Pending => (),
                Poll::Ready(Ok(bytes)) => return Poll::Ready(Event::Read { key: connection.key, bytes }),
                Poll::Ready(Err(_)) => {
                    let key = connection.key;
                    self.open.pop_front();
                    return Poll::Ready(Event::Ended(key));
                }
            }
        }
        Poll::Pending
    }

    fn is_open(&self, key: &Key) -> bool {
        self.open.iter().any(|connection| connection.key == *key)
    }

    /// Accepts connections on a port of ours.
    pub(super) fn listen(&mut self, base: SocketAddr) -> io::Result<()> {
        if !self.bound.iter().any(|(bound, _)| *bound == base) {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let listener = TcpSocket::from_std_stream(local_ports::another(base)?).listen(BACKLOG)?;
        self.listeners.push((base, listener));
        Ok(())
    }

    /// Dials from a port of ours.
    pub(super) fn dial(&mut self, key: Key, patience: Duration) {
        let dial = async move {
            let socket = TcpSocket::from_std_stream(local_ports::another(key.base)?);
            tokio::time::timeout(patience, socket.connect(key.remote)).await?
        };
        let handle = self.dials.spawn(async move { (key, dial.await) });
        self.dialling.insert(key, handle);
    }

    /// Writes a probe, after those that were not written yet.
    pub(super) fn write(&mut self, key: Key, bytes: &[u8]) {
        let Some(connection) = self.open.iter_mut().find(|connection| connection.key == key) else { return };
        connection.out.extend_from_slice(bytes);
    }

    pub(super) fn close(&mut self, key: Key) {
        self.open.retain(|connection| connection.key != key);
        if let Some(dial) = self.dialling.remove(&key) {
            dial.abort();
        }
    }

    /// Gives a connection away, after what is still to be written on it.
    pub(super) async fn give(&mut self, key: Key) -> io::Result<TcpStream> {
        let at = self.open.iter().position(|connection| connection.key == key);
        let connection = at.and_then(|at| self.open.remove(at)).ok_or(io::ErrorKind::NotConnected)?;
        let Connection { mut stream, filled: 0, out, .. } = connection else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "half a probe came before the last one was answered",
            ));
        };
        tokio::time::timeout(LAST_WRITE, stream.write_all(&out)).await??;
        local_ports::keep(&stream)?;
        Ok(stream)
    }
}

impl Connection {
    /// Writes what is to be written, and reads one probe. Nothing of what follows it is touched.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        while !self.out.is_empty()
            && let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(cx, &self.out)
        {
            self.out.drain(..written?);
        }
        while self.filled < SIZE {
            let mut buf = ReadBuf::new(&mut self.piece[self.filled..]);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buf))?;
            let n = buf.filled().len();
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.filled += n;
        }
        self.filled = 0;
        Poll::Ready(Ok(self.piece.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn side() -> (Streams, SocketAddr) {
        let bound = local_ports::Ports::bind(&[Transport::Tcp]).unwrap().tcp;
        let base = bound.iter().map(|(base, _)| *base).find(SocketAddr::is_ipv4).unwrap();
        (Streams::new(bound), base)
    }

    async fn next(side: &mut Streams) -> Event {
        std::future::poll_fn(|cx| side.poll(cx)).await
    }

    /// Two that listen, and a connection of theirs as each of them calls it.
    async fn connected() -> [(Streams, Key); 2] {
        let ((mut near, base), (mut far, port)) = (side(), side());
        near.listen(base).unwrap();
        far.listen(port).unwrap();
        let key = Key { transport: Transport::Tcp, base, remote: (Ipv4Addr::LOCALHOST, port.port()).into() };
        near.dial(key, Duration::from_secs(5));
        assert_eq!(next(&mut near).await, Event::Connected(key));
        let Event::Connected(theirs) = next(&mut far).await else { panic!("nothing was accepted") };
        [(near, key), (far, theirs)]
    }

    /// Whichever side does not keep it, and dials again; the other one has not looked yet.
    #[tokio::test]
    async fn a_connection_that_is_not_kept_leaves_its_addresses_free() {
        for again in [0, 1] {
            let mut sides = connected().await;
            let (side, key) = &mut sides[again];
            side.close(*key);
            side.dial(*key, Duration::from_secs(5));
            assert_eq!(next(side).await, Event::Connected(*key), "side {again}");
            let (other, theirs) = &mut sides[1 - again];
            assert_eq!(next(other).await, Event::Ended(*theirs), "side {again}");
            assert_eq!(next(other).await, Event::Connected(*theirs), "side {again}");
        }
    }
}
