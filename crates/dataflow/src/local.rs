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

use crate::worker::{EdgeConnector, EdgeEnd};

/// What all workers of a job know, and nobody else.
pub type JobToken = [u8; 32];

/// Strangers that have not said a token yet, at most, and how long they have.
const MAX_UNVERIFIED_CONNECTIONS: usize = 256;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a worker will be dialled.
#[derive(Debug)]
pub struct LocalListener(Plain);

impl LocalListener {
    /// On a port that the kernel chooses.
    ///
    /// # Errors
    /// The socket's.
    pub fn bind() -> io::Result<Self> {
        let listener = Plain::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// For its producers.
    ///
    /// # Errors
    /// The socket's.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Where consumers are. Those that are started later are added before their streams open.
#[derive(Clone, Debug, Default)]
pub struct ConsumerAddresses(Arc<Mutex<HashMap<String, SocketAddr>>>);

impl ConsumerAddresses {
    /// That worker is there.
    pub fn insert(&self, name: &str, address: SocketAddr) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name.to_owned(), address);
    }

    fn lookup(&self, name: &str) -> Option<SocketAddr> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .copied()
    }
}

/// One worker's streams.
pub struct LocalConnector {
    worker_name: String,
    token: JobToken,
    consumers: ConsumerAddresses,
    incoming: Mutex<HashMap<String, oneshot::Receiver<TcpStream>>>,
}

type ExpectedProducers = Arc<Mutex<HashMap<String, oneshot::Sender<TcpStream>>>>;

impl LocalConnector {
    /// Takes those producers in, for as long as the runtime runs that this is called on; dials those consumers.
    ///
    /// # Errors
    /// The socket's.
    pub fn new(
        listener: LocalListener,
        worker_name: String,
        token: JobToken,
        producers: impl IntoIterator<Item = String>,
        consumers: ConsumerAddresses,
    ) -> io::Result<Self> {
        let listener = TcpListener::from_std(listener.0)?;
        let (mut expected, mut incoming) = (HashMap::new(), HashMap::new());
        for producer in producers {
            let (sender, receiver) = oneshot::channel();
            expected.insert(producer.clone(), sender);
            incoming.insert(producer, receiver);
        }
        tokio::spawn(accept_producers(
            listener,
            token,
            Arc::new(Mutex::new(expected)),
        ));
        Ok(Self {
            worker_name,
            token,
            consumers,
            incoming: Mutex::new(incoming),
        })
    }
}

impl EdgeConnector for LocalConnector {
    type Stream = TcpStream;

    async fn connect(&self, end: EdgeEnd, peer: &str) -> io::Result<TcpStream> {
        match end {
            EdgeEnd::Consumer => {
                let incoming = self
                    .incoming
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .remove(peer);
                incoming
                    .ok_or_else(unknown_peer)?
                    .await
                    .map_err(|_| io::ErrorKind::ConnectionAborted.into())
            }
            EdgeEnd::Producer => {
                let address = self.consumers.lookup(peer).ok_or_else(unknown_peer)?;
                let mut stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                stream
                    .write_all(&encode_hello(&self.token, &self.worker_name))
                    .await?;
                Ok(stream)
            }
        }
    }
}

fn unknown_peer() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "nobody has said where it is")
}

fn encode_hello(token: &JobToken, name: &str) -> Vec<u8> {
    [
        &token[..],
        &(name.len() as u16).to_le_bytes(),
        name.as_bytes(),
    ]
    .concat()
}

async fn accept_producers(listener: TcpListener, token: JobToken, expected: ExpectedProducers) {
    let unverified = Arc::new(Semaphore::new(MAX_UNVERIFIED_CONNECTIONS));
    while !expected
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .is_empty()
    {
        let Ok(permit) = Arc::clone(&unverified).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await; // no descriptors: others must end first
            continue;
        };
        let expected = Arc::clone(&expected);
        tokio::spawn(async move {
            let _ = timeout(HANDSHAKE_TIMEOUT, accept_hello(stream, token, expected)).await;
            drop(permit);
        });
    }
}

/// Whoever is not awaited is dropped without a word.
async fn accept_hello(
    mut stream: TcpStream,
    token: JobToken,
    expected: ExpectedProducers,
) -> io::Result<()> {
    let mut header = [0; 34];
    stream.read_exact(&mut header).await?;
    let mut name = vec![0; usize::from(u16::from_le_bytes([header[32], header[33]]))];
    let difference = token
        .iter()
        .zip(&header)
        .fold(0, |differs, (ours, theirs)| differs | (ours ^ theirs));
    if difference != 0 || name.len() > 100 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.read_exact(&mut name).await?;
    stream.set_nodelay(true)?;
    let name = String::from_utf8_lossy(&name);
    let waiting = expected
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .remove(&*name);
    if let Some(taker) = waiting {
        let _ = taker.send(stream);
    }
    Ok(())
}
