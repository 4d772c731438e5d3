//! One handshake in memory, so that the next one can be spared.
//!
//! Both halves are quinn's own state machines without sockets. [`mint_session`] runs them in one process; where a worker's key is on another
//! node, [`Caller`] and [`Worker`] exchange their datagrams over the connection that the nodes already have, so that no key
//! leaves its node.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use quinn_proto::{
    ClientConfig, Connection, ConnectionEvent, ConnectionHandle, DatagramEvent, Endpoint,
    EndpointConfig, ServerConfig,
};

use super::{Provision, WorkerSessions};
use crate::quic::config::{self, TlsConfigError};

/// Rounds that a handshake takes at most: three, unless something is wrong.
const MAX_ROUNDS: usize = 10;

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
    Worker(#[from] TlsConfigError),
}

/// The half that keeps the session.
#[derive(Debug)]
pub struct CallerHandshake(HandshakeSide);

/// The half whose register gets the entry.
#[derive(Debug)]
pub struct WorkerHandshake {
    half: HandshakeSide,
    has_started: bool,
}

#[derive(Debug)]
struct HandshakeSide {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    peer: SocketAddr,
    now: Instant,
}

impl CallerHandshake {
    /// Begins. `config` is the very one that will be used to call: rustls keeps sessions apart by it. `worker` is an address that both
    /// halves are told; it goes nowhere.
    ///
    /// # Errors
    /// See [`MintError`].
    pub fn new(
        config: ClientConfig,
        name: &str,
        worker: SocketAddr,
        now: Instant,
    ) -> Result<Self, MintError> {
        let mut half = HandshakeSide::new(None, worker, now);
        half.connection = Some(half.endpoint.connect(now, config, worker, name)?);
        Ok(Self(half))
    }

    /// Takes the worker's datagrams, gives those for it.
    pub fn exchange_datagrams(&mut self, datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
        self.0.exchange_datagrams(datagrams)
    }

    /// Whether the handshake is complete and confirmed: the session was kept when it was.
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }
}

impl WorkerHandshake {
    /// `caller` is the address that the calls will come from: address tokens are bound to it.
    pub fn new(config: Arc<ServerConfig>, caller: SocketAddr, now: Instant) -> Self {
        Self {
            half: HandshakeSide::new(Some(config), caller, now),
            has_started: false,
        }
    }

    /// Takes the caller's datagrams, gives those for it.
    pub fn exchange_datagrams(&mut self, datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
        self.has_started |= !datagrams.is_empty();
        self.half.exchange_datagrams(datagrams)
    }

    /// Whether the handshake is complete.
    pub fn is_done(&self) -> bool {
        self.has_started && self.half.is_done()
    }
}

impl HandshakeSide {
    fn new(server: Option<Arc<ServerConfig>>, peer: SocketAddr, now: Instant) -> Self {
        let endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), server, false, None);
        Self {
            endpoint,
            connection: None,
            peer,
            now,
        }
    }

    fn exchange_datagrams(&mut self, datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
        for datagram in datagrams {
            self.receive_datagram(datagram);
        }
        self.process_events();
        self.collect_datagrams()
    }

    fn receive_datagram(&mut self, datagram: &[u8]) {
        let mut out = Vec::new(); // refusals and resets: in memory nobody waits for them
        match self.endpoint.handle(
            self.now,
            self.peer,
            None,
            None,
            BytesMut::from(datagram),
            &mut out,
        ) {
            Some(DatagramEvent::NewConnection(incoming)) if self.connection.is_none() => {
                self.connection = self
                    .endpoint
                    .accept(incoming, self.now, &mut out, None)
                    .ok();
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.endpoint.ignore(incoming),
            Some(DatagramEvent::ConnectionEvent(_, event)) => self.handle_event(event),
            _ => {}
        }
    }

    fn handle_event(&mut self, event: ConnectionEvent) {
        if let Some((_, connection)) = &mut self.connection {
            connection.handle_event(event);
        }
    }

    fn process_events(&mut self) {
        let Some((handle, connection)) = &mut self.connection else {
            return;
        };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        while connection.poll().is_some() {}
    }

    fn collect_datagrams(&mut self) -> Vec<Vec<u8>> {
        let Some((_, connection)) = &mut self.connection else {
            return Vec::new();
        };
        let mut datagrams = Vec::new();
        loop {
            let mut datagram = Vec::with_capacity(1500);
            if connection
                .poll_transmit(self.now, 1, &mut datagram)
                .is_none()
            {
                return datagrams;
            }
            datagrams.push(datagram);
        }
    }

    fn is_done(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|(_, one)| !one.is_handshaking() && !one.is_closed())
    }
}

/// Runs both halves in one process. The session and the address token are then in the stores of `caller`, the entry in the
/// register of `worker`.
///
/// # Errors
/// See [`MintError`].
pub fn mint_session(
    caller: ClientConfig,
    worker: Arc<ServerConfig>,
    name: &str,
    (caller_at, worker_at): (SocketAddr, SocketAddr),
) -> Result<(), MintError> {
    let now = Instant::now();
    let mut caller = CallerHandshake::new(caller, name, worker_at, now)?;
    let mut worker = WorkerHandshake::new(worker, caller_at, now);
    let mut to_caller = Vec::new();
    for _ in 0..MAX_ROUNDS {
        let to_worker = caller.exchange_datagrams(&to_caller);
        if to_worker.is_empty() {
            break;
        }
        to_caller = worker.exchange_datagrams(&to_worker);
    }
    if caller.is_done() && worker.is_done() {
        Ok(())
    } else {
        Err(MintError::NoSession)
    }
}

/// Mints for a worker that has not started: the sessions' worker's half goes into its provision, the caller's into the stores of
/// `caller`. `from` is the address that the calls will come from; port and the worker's own address do not matter.
///
/// # Errors
/// See [`MintError`].
pub fn mint_for_worker(
    provision: &mut Provision,
    caller: ClientConfig,
    from: IpAddr,
) -> Result<(), MintError> {
    let sessions = Arc::new(WorkerSessions::new(None));
    let trust = provision.worker_trust().map_err(TlsConfigError::from)?;
    let worker = config::worker_config(
        &provision.credentials,
        &trust,
        Arc::clone(&sessions),
        &provision.token_key,
    )?;
    let at = SocketAddr::new(from, 9);
    mint_session(
        caller,
        Arc::new(worker),
        &provision.credentials.name,
        (at, at),
    )?;
    provision.sessions.extend(sessions.drain_entries());
    Ok(())
}
