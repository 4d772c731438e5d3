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

use super::caller::Caller;
use super::code;
use super::config::{self, ConfigError};
use super::dial::Dialer;
use super::serve::{Call, Refused, Server};
use super::udp;
use crate::BoxError;
use crate::early::{Provision, Register};

/// Why a worker cannot serve, or go on with what it was given.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The socket.
    #[error("cannot serve QUIC: {0}")]
    Socket(#[from] io::Error),
    /// Certificate, key or authorities.
    #[error("cannot serve QUIC: {0}")]
    Config(#[from] ConfigError),
    /// An incarnation has one name for its life.
    #[error("this worker is {own}, the provision is for {other}")]
    Name {
        /// The worker's.
        own: String,
        /// The provision's.
        other: String,
    },
}

/// See the module's text. It stops when it is dropped.
pub struct Worker<H> {
    endpoint: Endpoint,
    register: Arc<Register>,
    server: Rc<Server<H>>,
    provision: Provision,
}

impl<H, F, B> Worker<H>
where
    H: Fn(Call) -> F + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    /// Serves on this socket. Must run inside a `LocalSet`.
    ///
    /// # Errors
    /// See [`WorkerError`].
    pub fn start(socket: UdpSocket, mut provision: Provision, handler: H) -> Result<Self, WorkerError> {
        udp::prepare(&socket);
        let register = Arc::new(Register::new(Some(end_of(&provision))));
        register.provision(provision.entries.drain(..), Instant::now());
        let trust = provision.trust().map_err(ConfigError::from)?;
        let config = config::worker(&provision.credentials, &trust, register.clone(), &provision.key)?;
        let endpoint = Endpoint::new(EndpointConfig::default(), Some(config), socket, Arc::new(TokioRuntime))?;
        let server = Server::new(trust, handler);
        tokio::task::spawn_local(accept(endpoint.clone(), Rc::clone(&server)));
        Ok(Self { endpoint, register, server, provision })
    }

    /// Takes what changed: sessions are added, the rest replaces what was there. Connections that are open stay, unless their peer is not
    /// admitted any more.
    ///
    /// # Errors
    /// See [`WorkerError`]; everything stays as it was.
    pub fn update(&mut self, mut next: Provision) -> Result<(), WorkerError> {
        let (own, other) = (&self.provision.credentials.name, &next.credentials.name);
        if own != other || self.provision.key != next.key {
            return Err(WorkerError::Name { own: own.clone(), other: other.clone() });
        }
        let entries = std::mem::take(&mut next.entries);
        if next != self.provision {
            let trust = next.trust().map_err(ConfigError::from)?;
            let config = config::worker(&next.credentials, &trust, self.register.clone(), &next.key)?;
            self.register.ends(end_of(&next));
            self.endpoint.set_server_config(Some(config));
            self.server.trust(trust);
            self.provision = next;
        }
        self.register.provision(entries, Instant::now());
        Ok(())
    }

    /// Who it is.
    pub fn id(&self) -> &SpiffeId {
        &self.provision.credentials.id
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the socket is broken.
    pub fn addr(&self) -> io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// Takes so many connections at a time from now on: see [`Server::connections`].
    pub fn connections(&self, most: usize) {
        self.server.connections(most);
    }

    /// Who was not let in; changes with each.
    pub fn refused(&self) -> watch::Receiver<Refused> {
        self.server.refused()
    }

    /// Its sessions.
    pub fn register(&self) -> &Register {
        &self.register
    }

    /// What it was given last, without the sessions.
    pub fn provision(&self) -> &Provision {
        &self.provision
    }

    /// Calls others from the same socket: one address is then good for both, so that whoever guards the network need not know who began. Ends
    /// with [`stop`](Self::stop).
    pub fn dialer(&self, caller: &Caller) -> Dialer {
        Dialer::new(self.endpoint.clone(), caller.config().clone(), caller.trust().clone())
    }

    /// Takes no more calls; done when those that are open have ended. Its own calls go on. Who connects now is let in, to be told that its calls were not
    /// looked at: a connection that is refused can be told nothing that it may believe, least of all in its first flight.
    pub async fn drain(&self) {
        self.server.stop().await;
    }

    /// Ends all connections now, its own calls with them, and returns when every peer was told. Calls that are open are cut.
    pub async fn cut(&self) {
        self.endpoint.set_server_config(None);
        self.endpoint.close(code::STOPPING, b"the worker is stopping");
        self.endpoint.wait_idle().await;
    }

    /// As [`drain`](Self::drain); then all connections end.
    pub async fn stop(&self) {
        self.drain().await;
        self.endpoint.set_server_config(None);
        self.endpoint.close(code::STOPPING, b"the worker is stopping");
        self.endpoint.wait_idle().await;
    }
}

async fn accept<H, F, B>(endpoint: Endpoint, server: Rc<Server<H>>)
where
    H: Fn(Call) -> F + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    while let Some(incoming) = endpoint.accept().await {
        tokio::task::spawn_local(Rc::clone(&server).connection(incoming));
    }
}

/// When the certificate ends, by the clock that sessions are kept by.
fn end_of(provision: &Provision) -> Instant {
    let left = provision.credentials.not_after.duration_since(SystemTime::now()).unwrap_or(Duration::ZERO);
    Instant::now() + left
}

impl<H> Drop for Worker<H> {
    fn drop(&mut self) {
        self.endpoint.close(code::STOPPING, b"the worker has stopped");
    }
}

impl<H> std::fmt::Debug for Worker<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Worker({:?})", self.provision)
    }
}
