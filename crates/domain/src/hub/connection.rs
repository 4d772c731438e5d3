//! One socket: packets in, letters out.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram as Plain;

use rustix::net::{SocketFlags, accept_with};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::mpsc;

use super::seat::Doorbell;
use crate::packet;
use crate::protocol::FromParty;

/// Letters that may wait for a party that does not read; a party with more is given up.
pub(super) const LETTERS: usize = 4096;

/// Number of a connection within the hub.
pub(super) type Key = u64;

/// A packet to be sent, with its descriptors.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) bytes: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
    /// The party's desk, once it has one: there it is told that something is on its socket.
    pub(super) bell: Option<Doorbell>,
}

/// What a socket has to say.
#[derive(Debug)]
pub(super) enum News {
    /// Somebody connected at a door.
    Came(Key, OwnedFd),
    /// A party speaks, and sends descriptors with it.
    Said(Key, FromParty, Vec<OwnedFd>),
    /// A party sent on its socket what it may not send.
    Tried(Key, Vec<u8>),
    /// A party hung up; why, if it broke the protocol.
    Left(Key, Option<String>),
}

/// tokio has no seqpacket socket. Its datagram socket waits for the readiness of any socket and leaves the calls to us.
pub(super) fn readiness(socket: OwnedFd) -> io::Result<UnixDatagram> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    UnixDatagram::from_std(Plain::from(socket))
}

/// A socket that tells its party when it is closed, however that comes about: a thread that sleeps at its desk looks at the
/// socket only when it is told to.
struct Line {
    socket: Option<UnixDatagram>,
    bell: Option<Doorbell>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.socket = None;
        self.bell.take().inspect(Doorbell::deliver);
    }
}

/// Reads and writes until either side hangs up.
pub(super) async fn serve(key: Key, socket: OwnedFd, letters: mpsc::Receiver<Letter>, news: mpsc::Sender<News>) {
    let fault = match readiness(socket) {
        Ok(socket) => {
            let mut line = Line { socket: Some(socket), bell: None };
            talk(key, &mut line, letters, &news).await.err().map(|error| error.to_string())
        }
        Err(error) => Some(error.to_string()),
    };
    let _ = news.send(News::Left(key, fault)).await;
}

async fn talk(
    key: Key,
    line: &mut Line,
    mut letters: mpsc::Receiver<Letter>,
    news: &mpsc::Sender<News>,
) -> io::Result<()> {
    let Line { socket: Some(socket), bell } = line else { return Ok(()) };
    loop {
        tokio::select! {
            packet = socket.async_io(Interest::READABLE, || packet::receive(socket.as_fd())) => {
                let Some(packet) = packet? else { return Ok(()) };
                let said = FromParty::read(&packet.bytes);
                let said = said.map_err(|fault| io::Error::new(io::ErrorKind::InvalidData, fault))?;
                if let Some(said) = said && news.send(News::Said(key, said, packet.descriptors)).await.is_err() {
                    return Ok(());
                }
            }
            letter = letters.recv() => {
                let Some(letter) = letter else { return Ok(()) };
                *bell = letter.bell.clone().or(bell.take());
                match write(socket, &letter).await {
                    Err(error) if hung_up(&error) => return Ok(()),
                    written => written?,
                }
                letter.bell.inspect(Doorbell::deliver);
            }
        }
    }
}

fn hung_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

async fn write(socket: &UnixDatagram, letter: &Letter) -> io::Result<()> {
    let borrowed: Vec<_> = letter.descriptors.iter().map(AsFd::as_fd).collect();
    let send = || packet::send_bytes(socket.as_fd(), &letter.bytes, &borrowed);
    socket.async_io(Interest::WRITABLE, send).await
}

/// Accepts at a door until its socket fails or the hub is gone.
pub(super) async fn accept(key: Key, socket: OwnedFd, news: mpsc::Sender<News>) -> io::Result<()> {
    let socket = readiness(socket)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        let came = socket.async_io(Interest::READABLE, || Ok(accept_with(socket.as_fd(), flags)?)).await?;
        if news.send(News::Came(key, came)).await.is_err() {
            return Ok(());
        }
    }
}
