//! A worker: one UDP socket, one incarnation, provisioned by its node.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::Response;
use http_body::Body;
use nearpath_types::SpiffeId;
use quinn::{Endpoint, EndpointConfig};
use tokio::sync::watch;

use super::caller::CallerConfig;
use super::close_code;
use super::config::{self, TlsConfigError};
use super::datagram_socket::open_endpoint;
use super::dialer::Dialer;
use super::server::{CallServer, RefusalStats, ServedCall};
use super::udp;
use crate::BoxError;
use crate::identity::Trust;
use crate::zero_rtt::{Provision, WorkerSessions};

/// Reasons why a worker cannot serve, or cannot apply a provision.
#[derive(Debug, thiserror::Error)]
pub enum QuicWorkerError {
    /// The socket failed.
    #[error("cannot serve QUIC: {0}")]
    Socket(#[from] io::Error),
    /// Certificate, key or authorities are unusable.
    #[error("cannot serve QUIC: {0}")]
    Config(#[from] TlsConfigError),
    /// The provision is for another incarnation, whose name never changes.
    #[error("this worker is {own}, the provision is for {other}")]
    WrongName {
        /// Name of the worker.
        own: String,
        /// Name in the provision.
        other: String,
    },
}

/// A QUIC worker. Dropping it stops it.
pub struct QuicWorker<H> {
    endpoint: Endpoint,
    /// Endpoint on a socket of the machine, for other machines.
    direct: Option<Endpoint>,
    sessions: Arc<WorkerSessions>,
    server: Rc<CallServer<H>>,
    provision: Provision,
}

impl<H, F, B> QuicWorker<H>
where
    H: Fn(ServedCall) -> F + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    /// Serves on this socket. Must run inside a `LocalSet`.
    ///
    /// # Errors
    /// See [`QuicWorkerError`].
    pub fn start(
        socket: UdpSocket,
        mut provision: Provision,
        handler: H,
    ) -> Result<Self, QuicWorkerError> {
        udp::request_buffers(&socket);
        let sessions = Arc::new(WorkerSessions::new(Some(certificate_end(&provision))));
        sessions.insert_minted(provision.sessions.drain(..), Instant::now());
        let trust = provision.worker_trust().map_err(TlsConfigError::from)?;
        let config = config::worker_config(
            &provision.credentials,
            &trust,
            sessions.clone(),
            &provision.token_key,
        )?;
        let endpoint = open_endpoint(EndpointConfig::default(), Some(config), socket)?;
        let server = CallServer::new(trust, handler);
        tokio::task::spawn_local(accept_connections(endpoint.clone(), Rc::clone(&server)));
        Ok(Self {
            endpoint,
            direct: None,
            sessions,
            server,
            provision,
        })
    }

    /// Serves on another socket, too, with the same identity, sessions and limits. Replaces an
    /// earlier one.
    ///
    /// # Errors
    /// See [`QuicWorkerError`]; the previous state is kept.
    pub fn add_socket(&mut self, socket: UdpSocket) -> Result<(), QuicWorkerError> {
        udp::request_buffers(&socket);
        let trust = self.provision.worker_trust();
        let config = self.build_config(&trust.map_err(TlsConfigError::from)?, &self.provision)?;
        let endpoint = open_endpoint(EndpointConfig::default(), Some(config), socket)?;
        let serving = accept_connections(endpoint.clone(), Rc::clone(&self.server));
        tokio::task::spawn_local(serving);
        if let Some(before) = self.direct.replace(endpoint) {
            before.close(close_code::STOPPING, b"the worker has another socket");
        }
        Ok(())
    }

    fn build_config(
        &self,
        trust: &Trust,
        provision: &Provision,
    ) -> Result<config::WorkerConfig, TlsConfigError> {
        config::worker_config(
            &provision.credentials,
            trust,
            self.sessions.clone(),
            &provision.token_key,
        )
    }

    fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        std::iter::once(&self.endpoint).chain(&self.direct)
    }

    /// Applies a provision: sessions are added, everything else replaces its predecessor. Open
    /// connections stay, unless their peer is not admitted any more.
    ///
    /// # Errors
    /// See [`QuicWorkerError`]; the previous state is kept.
    pub fn apply_provision(&mut self, mut next: Provision) -> Result<(), QuicWorkerError> {
        let (own, other) = (&self.provision.credentials.name, &next.credentials.name);
        // Sessions and tokens belong to one incarnation: mixing them would allow replays.
        if own != other || self.provision.token_key != next.token_key {
            return Err(QuicWorkerError::WrongName {
                own: own.clone(),
                other: other.clone(),
            });
        }
        // Compared without the sessions: most updates bring nothing else and keep the
        // configuration.
        let entries = std::mem::take(&mut next.sessions);
        if next != self.provision {
            let trust = next.worker_trust().map_err(TlsConfigError::from)?;
            let config = self.build_config(&trust, &next)?;
            self.sessions.set_certificate_end(certificate_end(&next));
            // New handshakes use the new certificate; open connections keep theirs.
            for endpoint in self.endpoints() {
                endpoint.set_server_config(Some(config.clone()));
            }
            self.server.set_trust(trust);
            self.provision = next;
        }
        self.sessions.insert_minted(entries, Instant::now());
        Ok(())
    }

    /// SPIFFE ID of the worker.
    pub fn spiffe_id(&self) -> &SpiffeId {
        &self.provision.credentials.id
    }

    /// Address that the worker listens on.
    ///
    /// # Errors
    /// When the socket is broken.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// Limits the number of connections, see [`CallServer::set_max_connections`].
    pub fn set_max_connections(&self, max: usize) {
        self.server.set_max_connections(max);
    }

    /// Counts refused peers; changes with each of them.
    pub fn refusals(&self) -> watch::Receiver<RefusalStats> {
        self.server.refusals()
    }

    /// Sessions of the worker.
    pub fn sessions(&self) -> &WorkerSessions {
        &self.sessions
    }

    /// Last provision, without the sessions.
    pub fn provision(&self) -> &Provision {
        &self.provision
    }

    /// Dials other workers from the same socket: one address serves both directions, so a firewall
    /// need not know which side connects. Ends with [`stop`](Self::stop).
    pub fn dialer_as(&self, caller: &CallerConfig) -> Dialer {
        Dialer::new(
            self.endpoint.clone(),
            caller.config().clone(),
            caller.trust().clone(),
        )
    }

    /// Dials workers on other machines from the socket for them; `None` without one.
    pub fn direct_dialer_as(&self, caller: &CallerConfig) -> Option<Dialer> {
        let endpoint = self.direct.as_ref()?;
        Some(caller.dialer_on(endpoint))
    }

    /// Accepts no more calls, and returns when the open ones have ended. Its own calls continue.
    /// New connections are still accepted: only after a handshake their callers can trust that no
    /// call was run.
    pub async fn drain(&self) {
        self.server.drain_calls().await;
    }

    /// Closes all connections now, its own calls included, and returns when every peer was
    /// notified. Open calls are cut.
    pub async fn close_now(&self) {
        for endpoint in self.endpoints() {
            // New connections are refused before the open ones are closed.
            endpoint.set_server_config(None);
            endpoint.close(close_code::STOPPING, b"the worker is stopping");
        }
        for endpoint in self.endpoints() {
            endpoint.wait_idle().await;
        }
    }

    /// Drains ([`drain`](Self::drain)), then closes all connections.
    pub async fn stop(&self) {
        self.drain().await;
        self.close_now().await;
    }
}

async fn accept_connections<H, F, B>(endpoint: Endpoint, server: Rc<CallServer<H>>)
where
    H: Fn(ServedCall) -> F + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    while let Some(incoming) = endpoint.accept().await {
        // One task for each connection: a slow handshake delays no other.
        tokio::task::spawn_local(Rc::clone(&server).serve_connection(incoming));
    }
}

/// End of the certificate on the monotonic clock, which sessions use.
fn certificate_end(provision: &Provision) -> Instant {
    let left = provision
        .credentials
        .not_after
        .duration_since(SystemTime::now())
        .unwrap_or(Duration::ZERO);
    Instant::now() + left
}

impl<H> Drop for QuicWorker<H> {
    fn drop(&mut self) {
        for endpoint in std::iter::once(&self.endpoint).chain(&self.direct) {
            endpoint.close(close_code::STOPPING, b"the worker has stopped");
        }
    }
}

impl<H> std::fmt::Debug for QuicWorker<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Worker({:?})", self.provision)
    }
}
