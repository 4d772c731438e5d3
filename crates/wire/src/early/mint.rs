//! One handshake in memory, so that the next one can be spared.
//!
//! Both halves are quinn's own state machines without sockets. [`mint`] runs them in one process; where a worker's key is on another
//! node, [`Caller`] and [`Worker`] exchange their datagrams over the connection that the nodes already have, so that no key
//! leaves its node.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use quinn_proto::{
    ClientConfig, Connection, ConnectionEvent, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig, ServerConfig,
};

use super::{Provision, Register};
use crate::quic::config::{self, ConfigError};

/// Rounds that a handshake takes at most: three, unless something is wrong.
const ROUNDS: usize = 10;

/// Why nothing was minted.
#[derive(Debug, thiserror::Error)]
pub enum MintError {
    /// The name is no DNS name, or the configuration allows no connection.
    #[error("no handshake can begin: {0}")]
    Begin(#[from] quinn_proto::ConnectError),
    /// One side does not trust the other, or their settings do not match.
    #[error("the handshake ended without a session")]
    NoSession,
    /// The worker could not be set up with what it is to be given.
    #[error("the worker's side: {0}")]
    Worker(#[from] ConfigError),
}

/// The half that keeps the session.
#[derive(Debug)]
pub struct Caller(Half);

/// The half whose register gets the entry.
#[derive(Debug)]
pub struct Worker {
    half: Half,
    began: bool,
}

#[derive(Debug)]
struct Half {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    peer: SocketAddr,
    now: Instant,
}

impl Caller {
    /// Begins. `config` is the very one that will be used to call: rustls keeps sessions apart by it. `worker` is an address that both
    /// halves are told; it goes nowhere.
    ///
    /// # Errors
    /// See [`MintError`].
    pub fn new(config: ClientConfig, name: &str, worker: SocketAddr, now: Instant) -> Result<Self, MintError> {
        let mut half = Half::new(None, worker, now);
        half.connection = Some(half.endpoint.connect(now, config, worker, name)?);
        Ok(Self(half))
    }

    /// Takes the worker's datagrams, gives those for it.
    pub fn step(&mut self, datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
        self.0.step(datagrams)
    }

    /// Whether the handshake is complete and confirmed: the session was kept when it was.
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }
}

impl Worker {
    /// `caller` is the address that the calls will come from: address tokens are bound to it.
    pub fn new(config: Arc<ServerConfig>, caller: SocketAddr, now: Instant) -> Self {
        Self { half: Half::new(Some(config), caller, now), began: false }
    }

    /// Takes the caller's datagrams, gives those for it.
    pub fn step(&mut self, datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
        self.began |= !datagrams.is_empty();
        self.half.step(datagrams)
    }

    /// Whether the handshake is complete.
    pub fn is_done(&self) -> bool {
        self.began && self.half.is_done()
    }
}

impl Half {
    fn new(server: Option<Arc<ServerConfig>>, peer: SocketAddr, now: Instant) -> Self {
        let endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), server, false, None);
        Self { endpoint, connection: None, peer, now }
    }

    fn step(&mut self, datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
        for datagram in datagrams {
            self.take(datagram);
        }
        self.events();
        self.give()
    }

    fn take(&mut self, datagram: &[u8]) {
        let mut out = Vec::new(); // refusals and resets: in memory nobody waits for them
        match self.endpoint.handle(self.now, self.peer, None, None, BytesMut::from(datagram), &mut out) {
            Some(DatagramEvent::NewConnection(incoming)) if self.connection.is_none() => {
                self.connection = self.endpoint.accept(incoming, self.now, &mut out, None).ok();
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.endpoint.ignore(incoming),
            Some(DatagramEvent::ConnectionEvent(_, event)) => self.handle(event),
            _ => {}
        }
    }

    fn handle(&mut self, event: ConnectionEvent) {
        if let Some((_, connection)) = &mut self.connection {
            connection.handle_event(event);
        }
    }

    fn events(&mut self) {
        let Some((handle, connection)) = &mut self.connection else { return };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        while connection.poll().is_some() {}
    }

    fn give(&mut self) -> Vec<Vec<u8>> {
        let Some((_, connection)) = &mut self.connection else { return Vec::new() };
        let mut given = Vec::new();
        loop {
            let mut datagram = Vec::with_capacity(1500);
            if connection.poll_transmit(self.now, 1, &mut datagram).is_none() {
                return given;
            }
            given.push(datagram);
        }
    }

    fn is_done(&self) -> bool {
        self.connection.as_ref().is_some_and(|(_, one)| !one.is_handshaking() && !one.is_closed())
    }
}

/// Runs both halves in one process. The session and the address token are then in the stores of `caller`, the entry in the
/// register of `worker`.
///
/// # Errors
/// See [`MintError`].
pub fn mint(
    caller: ClientConfig,
    worker: Arc<ServerConfig>,
    name: &str,
    (caller_at, worker_at): (SocketAddr, SocketAddr),
) -> Result<(), MintError> {
    let now = Instant::now();
    let mut caller = Caller::new(caller, name, worker_at, now)?;
    let mut worker = Worker::new(worker, caller_at, now);
    let mut back = Vec::new();
    for _ in 0..ROUNDS {
        let there = caller.step(&back);
        if there.is_empty() {
            break;
        }
        back = worker.step(&there);
    }
    if caller.is_done() && worker.is_done() { Ok(()) } else { Err(MintError::NoSession) }
}

/// Mints for a worker that has not started: the sessions' worker's half goes into its provision, the caller's into the stores of
/// `caller`. `from` is the address that the calls will come from; port and the worker's own address do not matter.
///
/// # Errors
/// See [`MintError`].
pub fn for_worker(provision: &mut Provision, caller: ClientConfig, from: IpAddr) -> Result<(), MintError> {
    let register = Arc::new(Register::new(None));
    let trust = provision.trust().map_err(ConfigError::from)?;
    let worker = config::worker(&provision.credentials, &trust, Arc::clone(&register), &provision.key)?;
    let at = SocketAddr::new(from, 9);
    mint(caller, Arc::new(worker), &provision.credentials.name, (at, at))?;
    provision.entries.extend(register.drain());
    Ok(())
}
