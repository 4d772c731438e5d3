//! Streams between processes on one machine: TCP on loopback.
//!
//! The dialing side sends the job's token (32 bytes) and its name (2 bytes of length, then text).
//! Connections without the token are dropped. Nothing is encrypted: the bytes never leave the
//! machine.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdTcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::worker::{EdgeConnector, EdgeEnd};

/// Secret that all workers of a job share.
pub type JobToken = [u8; 32];

/// Accepted connections that have not sent the token yet.
const MAX_UNVERIFIED_CONNECTIONS: usize = 256;
/// Time for a connection to send token and name.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Listener for a worker's producers.
#[derive(Debug)]
pub struct LocalListener(StdTcpListener);

impl LocalListener {
    /// Binds a port that the kernel chooses.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn bind() -> io::Result<Self> {
        let listener = StdTcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        // tokio requires it of a listener that it takes over later in `LocalConnector::new`.
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Address for the producers.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Addresses of consumers. Workers that start later are added before their streams open.
#[derive(Clone, Debug, Default)]
pub struct ConsumerAddresses(Arc<Mutex<HashMap<String, SocketAddr>>>);

impl ConsumerAddresses {
    /// Adds the address of a worker.
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

/// Streams of one worker.
pub struct LocalConnector {
    worker_name: String,
    token: JobToken,
    consumers: ConsumerAddresses,
    incoming: Mutex<HashMap<String, oneshot::Receiver<TcpStream>>>,
}

type ExpectedProducers = Arc<Mutex<HashMap<String, oneshot::Sender<TcpStream>>>>;

impl LocalConnector {
    /// Accepts the given producers for as long as the current runtime runs, and dials consumers at
    /// `consumers`.
    ///
    /// # Errors
    /// Errors of the socket.
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
                // Acks and barriers are short and awaited by the peer: Nagle's algorithm would hold
                // them back.
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
    io::Error::new(
        io::ErrorKind::NotFound,
        "no address is known for this worker",
    )
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
    // Ends with the last expected producer, which frees the port while the job still runs.
    while !expected
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .is_empty()
    {
        let Ok(permit) = Arc::clone(&unverified).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: wait until connections close.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let expected = Arc::clone(&expected);
        // A task per connection: a silent stranger must not delay a producer.
        tokio::spawn(async move {
            let _ = timeout(HANDSHAKE_TIMEOUT, accept_hello(stream, token, expected)).await;
            drop(permit);
        });
    }
}

/// Verifies token and name. Unexpected connections are dropped without a reply.
async fn accept_hello(
    mut stream: TcpStream,
    token: JobToken,
    expected: ExpectedProducers,
) -> io::Result<()> {
    let mut header = [0; 34];
    stream.read_exact(&mut header).await?;
    let mut name = vec![0; usize::from(u16::from_le_bytes([header[32], header[33]]))];
    // Compared in constant time: an early exit would let a local user guess the token byte by byte.
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
