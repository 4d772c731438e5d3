//! Asking the rendezvous under which addresses it sees the ports.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::punch::Transport;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::local_ports;
use super::udp::Datagrams;

/// A question over UDP goes so often, and again after so long, then twice that, and so on.
const ASKS: u32 = 6;
const FIRST: Duration = Duration::from_millis(100);
/// An answer over TCP may take so long, with the connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// An answer is no longer.
const LONGEST: usize = 512;

/// What is asked, and how the answer is read: the words are the rendezvous' (`contract/rendezvous.md`).
pub trait Ask: fmt::Debug + Send + Sync {
    /// A question; over TCP it is all that is written.
    fn question(&self) -> Vec<u8>;

    /// The address that an answer tells; `None`: it is none, or over TCP not all of it.
    fn answer(&self, bytes: &[u8]) -> Option<SocketAddr>;
}

/// Whom to ask.
#[derive(Debug, Clone)]
pub struct Observers {
    /// Those that listen on UDP. Of each family the first one is asked.
    pub udp: Vec<SocketAddr>,
    /// Those that listen on TCP, likewise.
    pub tcp: Vec<SocketAddr>,
    /// How.
    pub ask: Arc<dyn Ask>,
}

/// What is seen of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) transport: Transport,
    pub(super) base: SocketAddr,
    pub(super) at: SocketAddr,
}

/// The questions that are open.
#[derive(Debug)]
pub(super) struct Asking {
    ask: Arc<dyn Ask>,
    udp: Vec<Question>,
    tcp: JoinSet<io::Result<(Seen, TcpStream)>>,
    /// Connections to the rendezvous; as long as they are there, NATs remember the port.
    kept: Vec<TcpStream>,
}

#[derive(Debug)]
struct Question {
    base: SocketAddr,
    to: SocketAddr,
    asked: u32,
    next: Instant,
}

impl Asking {
    pub(super) fn new(observers: &Observers, udp: &[SocketAddr], tcp: &[SocketAddr], now: Instant) -> Self {
        let first =
            |all: &[SocketAddr], base: &SocketAddr| all.iter().find(|to| to.is_ipv4() == base.is_ipv4()).copied();
        let questions = udp.iter().filter_map(|base| Some((*base, first(&observers.udp, base)?)));
        let udp = questions.map(|(base, to)| Question { base, to, asked: 0, next: now }).collect();
        let mut dials = JoinSet::new();
        for (base, to) in tcp.iter().filter_map(|base| Some((*base, first(&observers.tcp, base)?))) {
            let ask = Arc::clone(&observers.ask);
            dials.spawn(async move { tokio::time::timeout(PATIENCE, over_tcp(base, to, &*ask)).await? });
        }
        Self { ask: Arc::clone(&observers.ask), udp, tcp: dials, kept: Vec::new() }
    }

    /// Asks what is to be asked (again).
    pub(super) fn send(&mut self, datagrams: &Datagrams, now: Instant) {
        for question in self.udp.iter_mut().filter(|question| question.next <= now) {
            datagrams.send(question.base, question.to, &self.ask.question());
            question.next = now + FIRST * 2u32.pow(question.asked);
            question.asked += 1;
        }
        self.udp.retain(|question| question.asked <= ASKS);
    }

    /// When to come back for [`Self::send`].
    pub(super) fn next(&self) -> Option<Instant> {
        self.udp.iter().map(|question| question.next).min()
    }

    /// Whether a datagram was an answer.
    pub(super) fn answered(&mut self, base: SocketAddr, from: SocketAddr, bytes: &[u8]) -> Option<Seen> {
        let at = self.udp.iter().position(|question| question.base == base && question.to == from)?;
        let seen = self.ask.answer(bytes)?;
        self.udp.swap_remove(at);
        Some(Seen { transport: Transport::Udp, base, at: seen })
    }

    /// Answers over TCP.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Seen> {
        while let Poll::Ready(Some(done)) = self.tcp.poll_join_next(cx) {
            match done {
                Ok(Ok((seen, stream))) => {
                    self.kept.push(stream);
                    return Poll::Ready(seen);
                }
                Ok(Err(error)) => tracing::debug!(%error, "the rendezvous does not say how it sees a port"),
                Err(_) => (),
            }
        }
        Poll::Pending
    }
}

async fn over_tcp(base: SocketAddr, to: SocketAddr, ask: &dyn Ask) -> io::Result<(Seen, TcpStream)> {
    let mut stream = TcpSocket::from_std_stream(local_ports::another(base)?).connect(to).await?;
    stream.write_all(&ask.question()).await?;
    let (mut bytes, mut filled) = ([0; LONGEST], 0);
    loop {
        let n = stream.read(&mut bytes[filled..]).await?;
        filled += n;
        if let Some(at) = ask.answer(&bytes[..filled]) {
            local_ports::keep(&stream)?;
            return Ok((Seen { transport: Transport::Tcp, base, at }, stream));
        }
        if n == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{to} gave no answer")));
        }
    }
}
