//! A worker as a whole: one UDP socket, one incarnation, provisioned by its node.

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
use quinn::{Endpoint, EndpointConfig, TokioRuntime};
use tokio::sync::watch;

use super::caller::CallerConfig;
use super::close_code;
use super::config::{self, TlsConfigError};
use super::dialer::Dialer;
use super::server::{CallServer, RefusalStats, ServedCall};
use super::udp;
use crate::BoxError;
use crate::zero_rtt::{Provision, WorkerSessions};

/// Why a worker cannot serve, or go on with what it was given.
#[derive(Debug, thiserror::Error)]
pub enum QuicWorkerError {
    /// The socket.
    #[error("cannot serve QUIC: {0}")]
    Socket(#[from] io::Error),
    /// Certificate, key or authorities.
    #[error("cannot serve QUIC: {0}")]
    Config(#[from] TlsConfigError),
    /// An incarnation has one name for its life.
    #[error("this worker is {own}, the provision is for {other}")]
    WrongName {
        /// The worker's.
        own: String,
        /// The provision's.
        other: String,
    },
}

/// See the module's text. It stops when it is dropped.
pub struct QuicWorker<H> {
    endpoint: Endpoint,
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
        let endpoint = Endpoint::new(
            EndpointConfig::default(),
            Some(config),
            socket,
            Arc::new(TokioRuntime),
        )?;
        let server = CallServer::new(trust, handler);
        tokio::task::spawn_local(accept_connections(endpoint.clone(), Rc::clone(&server)));
        Ok(Self {
            endpoint,
            sessions,
            server,
            provision,
        })
    }

    /// Takes what changed: sessions are added, the rest replaces what was there. Connections that are open stay, unless their peer is not
    /// admitted any more.
    ///
    /// # Errors
    /// See [`QuicWorkerError`]; everything stays as it was.
    pub fn apply_provision(&mut self, mut next: Provision) -> Result<(), QuicWorkerError> {
        let (own, other) = (&self.provision.credentials.name, &next.credentials.name);
        if own != other || self.provision.token_key != next.token_key {
            return Err(QuicWorkerError::WrongName {
                own: own.clone(),
                other: other.clone(),
            });
        }
        let entries = std::mem::take(&mut next.sessions);
        if next != self.provision {
            let trust = next.worker_trust().map_err(TlsConfigError::from)?;
            let config = config::worker_config(
                &next.credentials,
                &trust,
                self.sessions.clone(),
                &next.token_key,
            )?;
            self.sessions.set_certificate_end(certificate_end(&next));
            self.endpoint.set_server_config(Some(config));
            self.server.set_trust(trust);
            self.provision = next;
        }
        self.sessions.insert_minted(entries, Instant::now());
        Ok(())
    }

    /// Who it is.
    pub fn spiffe_id(&self) -> &SpiffeId {
        &self.provision.credentials.id
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the socket is broken.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// Takes so many connections at a time from now on: see [`CallServer::connections`].
    pub fn set_max_connections(&self, max: usize) {
        self.server.set_max_connections(max);
    }

    /// Who was not let in; changes with each.
    pub fn refusals(&self) -> watch::Receiver<RefusalStats> {
        self.server.refusals()
    }

    /// Its sessions.
    pub fn sessions(&self) -> &WorkerSessions {
        &self.sessions
    }

    /// What it was given last, without the sessions.
    pub fn provision(&self) -> &Provision {
        &self.provision
    }

    /// Calls others from the same socket: one address is then good for both, so that whoever guards the network need not know who began. Ends
    /// with [`drain_calls`](Self::stop).
    pub fn dialer_as(&self, caller: &CallerConfig) -> Dialer {
        Dialer::new(
            self.endpoint.clone(),
            caller.config().clone(),
            caller.trust().clone(),
        )
    }

    /// Takes no more calls; done when those that are open have ended. Its own calls go on. Who connects now is let in, to be told that its calls were not
    /// looked at: a connection that is refused can be told nothing that it may believe, least of all in its first flight.
    pub async fn drain(&self) {
        self.server.drain_calls().await;
    }

    /// Ends all connections now, its own calls with them, and returns when every peer was told. Calls that are open are cut.
    pub async fn close_now(&self) {
        self.endpoint.set_server_config(None);
        self.endpoint
            .close(close_code::STOPPING, b"the worker is stopping");
        self.endpoint.wait_idle().await;
    }

    /// As [`drain_entries`](Self::drain); then all connections end.
    pub async fn stop(&self) {
        self.drain().await;
        self.endpoint.set_server_config(None);
        self.endpoint
            .close(close_code::STOPPING, b"the worker is stopping");
        self.endpoint.wait_idle().await;
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
        tokio::task::spawn_local(Rc::clone(&server).serve_connection(incoming));
    }
}

/// When the certificate ends, by the clock that sessions are kept by.
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
        self.endpoint
            .close(close_code::STOPPING, b"the worker has stopped");
    }
}

impl<H> std::fmt::Debug for QuicWorker<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Worker({:?})", self.provision)
    }
}
