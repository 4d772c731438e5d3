//! Minting: a QUIC handshake in memory whose session makes the next handshake unnecessary.
//!
//! Both sides are quinn's state machines without sockets. [`mint_session`] runs them in one
//! process. Where the worker's key is on another node, [`CallerHandshake`] and [`WorkerHandshake`]
//! exchange their datagrams over the connection between the nodes, so that no key leaves its node.

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

/// Maximum number of rounds of a handshake. A successful one needs three.
const MAX_ROUNDS: usize = 10;

/// Reasons why no session was minted.
#[derive(Debug, thiserror::Error)]
pub enum MintError {
    /// The name is not a DNS name, or the configuration allows no connection.
    #[error("cannot start the handshake: {0}")]
    Begin(#[from] quinn_proto::ConnectError),
    /// One side does not trust the other, or their settings do not match.
    #[error("the handshake ended without a session")]
    NoSession,
    /// The worker's side could not be configured.
    #[error("cannot configure the worker's side: {0}")]
    Worker(#[from] TlsConfigError),
}

/// The caller's side of a handshake, which keeps the session.
#[derive(Debug)]
pub struct CallerHandshake(HandshakeSide);

/// The worker's side of a handshake, whose session store gets the entry.
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
    /// Starts the handshake. `config` must be the configuration that will be used for calls: rustls
    /// keeps sessions apart by it. Both sides use the address `worker`; nothing is sent to it.
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

    /// Takes the worker's datagrams and returns those for the worker.
    pub fn exchange_datagrams(&mut self, datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
        self.0.exchange_datagrams(datagrams)
    }

    /// Returns true once the handshake is complete and confirmed. The session is stored at that
    /// moment.
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }
}

impl WorkerHandshake {
    /// Starts the worker's side. Calls must come from the address `caller`: address tokens are
    /// bound to it.
    pub fn new(config: Arc<ServerConfig>, caller: SocketAddr, now: Instant) -> Self {
        Self {
            half: HandshakeSide::new(Some(config), caller, now),
            has_started: false,
        }
    }

    /// Takes the caller's datagrams and returns those for the caller.
    pub fn exchange_datagrams(&mut self, datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
        self.has_started |= !datagrams.is_empty();
        self.half.exchange_datagrams(datagrams)
    }

    /// Returns true once the handshake is complete.
    pub fn is_done(&self) -> bool {
        self.has_started && self.half.is_done()
    }
}

impl HandshakeSide {
    fn new(server: Option<Arc<ServerConfig>>, peer: SocketAddr, now: Instant) -> Self {
        // No MTU discovery: the datagrams never leave the process.
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
        let mut out = Vec::new(); // refusals and resets, which have no receiver in memory
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
            // A repeated first packet: the handshake has one connection.
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
        // Application events are not needed, but quinn keeps them until they are polled.
        while connection.poll().is_some() {}
    }

    fn collect_datagrams(&mut self) -> Vec<Vec<u8>> {
        let Some((_, connection)) = &mut self.connection else {
            return Vec::new();
        };
        let mut datagrams = Vec::new();
        loop {
            // At most one Ethernet frame, although quinn sends 1,200 bytes without MTU discovery.
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
            .is_some_and(|(_, connection)| !connection.is_handshaking() && !connection.is_closed())
    }
}

/// Runs both sides in one process. Afterwards the stores of `caller` hold the session and the
/// address token, and the sessions of `worker` hold the entry.
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
        // quinn waits for a timer only: the handshake is complete, or it failed.
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

/// Mints for a worker that has not started. The worker's half of the session goes into its
/// provision, the caller's half into the stores of `caller`. `from` is the address that the calls
/// will come from; its port and the worker's address do not matter.
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
    // Tokens are bound to the IP address only, so any port will do: 9 is the discard service.
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
