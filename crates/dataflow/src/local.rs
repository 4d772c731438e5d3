//! Streams between processes of one machine: TCP on loopback.
//!
//! Whoever dials says the job's token (32 bytes) and its name (2 bytes of length, then text); who does not know the token is
//! dropped. Nothing is encrypted: it never leaves the machine.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as Plain};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::worker::{Connector, End};

/// What all workers of a job know, and nobody else.
pub type Token = [u8; 32];

/// Strangers that have not said a token yet, at most, and how long they have.
const STRANGERS: usize = 256;
const PATIENCE: Duration = Duration::from_secs(5);

/// Where a worker will be dialled.
#[derive(Debug)]
pub struct Door(Plain);

impl Door {
    /// On a port that the kernel chooses.
    ///
    /// # Errors
    /// The socket's.
    pub fn open() -> io::Result<Self> {
        let listener = Plain::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// For its producers.
    ///
    /// # Errors
    /// The socket's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Where consumers are. Those that are started later are added before their streams open.
#[derive(Clone, Debug, Default)]
pub struct Addresses(Arc<Mutex<HashMap<String, SocketAddr>>>);

impl Addresses {
    /// That worker is there.
    pub fn add(&self, name: &str, address: SocketAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), address);
    }

    fn of(&self, name: &str) -> Option<SocketAddr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }
}

/// One worker's streams.
pub struct Local {
    me: String,
    token: Token,
    consumers: Addresses,
    producers: Mutex<HashMap<String, oneshot::Receiver<TcpStream>>>,
}

type Awaited = Arc<Mutex<HashMap<String, oneshot::Sender<TcpStream>>>>;

impl Local {
    /// Takes those producers in, for as long as the runtime runs that this is called on; dials those consumers.
    ///
    /// # Errors
    /// The socket's.
    pub fn new(
        door: Door,
        me: String,
        token: Token,
        producers: impl IntoIterator<Item = String>,
        consumers: Addresses,
    ) -> io::Result<Self> {
        let listener = TcpListener::from_std(door.0)?;
        let (mut awaited, mut coming) = (HashMap::new(), HashMap::new());
        for producer in producers {
            let (sender, receiver) = oneshot::channel();
            awaited.insert(producer.clone(), sender);
            coming.insert(producer, receiver);
        }
        tokio::spawn(take_in(listener, token, Arc::new(Mutex::new(awaited))));
        Ok(Self { me, token, consumers, producers: Mutex::new(coming) })
    }
}

impl Connector for Local {
    type Stream = TcpStream;

    async fn connect(&self, end: End, peer: &str) -> io::Result<TcpStream> {
        match end {
            End::Consumer => {
                let coming = self.producers.lock().unwrap_or_else(PoisonError::into_inner).remove(peer);
                coming.ok_or_else(unknown)?.await.map_err(|_| io::ErrorKind::ConnectionAborted.into())
            }
            End::Producer => {
                let address = self.consumers.of(peer).ok_or_else(unknown)?;
                let mut stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                stream.write_all(&greeting(&self.token, &self.me)).await?;
                Ok(stream)
            }
        }
    }
}

fn unknown() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "nobody has said where it is")
}

fn greeting(token: &Token, name: &str) -> Vec<u8> {
    [&token[..], &(name.len() as u16).to_le_bytes(), name.as_bytes()].concat()
}

async fn take_in(listener: TcpListener, token: Token, awaited: Awaited) {
    let strangers = Arc::new(Semaphore::new(STRANGERS));
    while !awaited.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
        let Ok(place) = Arc::clone(&strangers).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await; // no descriptors: others must end first
            continue;
        };
        let awaited = Arc::clone(&awaited);
        tokio::spawn(async move {
            let _ = timeout(PATIENCE, greet(stream, token, awaited)).await;
            drop(place);
        });
    }
}

/// Whoever is not awaited is dropped without a word.
async fn greet(mut stream: TcpStream, token: Token, awaited: Awaited) -> io::Result<()> {
    let mut said = [0; 34];
    stream.read_exact(&mut said).await?;
    let mut name = vec![0; usize::from(u16::from_le_bytes([said[32], said[33]]))];
    let differs = token.iter().zip(&said).fold(0, |differs, (ours, theirs)| differs | (ours ^ theirs));
    if differs != 0 || name.len() > 100 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.read_exact(&mut name).await?;
    stream.set_nodelay(true)?;
    let name = String::from_utf8_lossy(&name);
    let taker = awaited.lock().unwrap_or_else(PoisonError::into_inner).remove(&*name);
    if let Some(taker) = taker {
        let _ = taker.send(stream);
    }
    Ok(())
}
