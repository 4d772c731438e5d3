//! A caller's side: opens connections to incarnations of workers, which it knows by their names.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ClientConfig;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::version::{TLS12, TLS13};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{CallerStream, ConfigError, config};
use crate::early::Sessions;
use crate::identity::{Credentials, Peer, Refusal, Trust};

/// Version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// RFC 8446; later connections resume sessions of earlier ones.
    Tls13,
    /// RFC 5246; every handshake is a full one.
    Tls12,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls13 => "TLS 1.3",
            Self::Tls12 => "TLS 1.2",
        })
    }
}

/// What is spoken on a connection; the worker is told so (ALPN).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// Why there is no connection. In every case nothing of a request was sent.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No TCP connection.
    #[error("cannot connect to {addr}: {source}")]
    Io {
        /// Where to.
        addr: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// No TCP connection, or no end of the handshake, in time.
    #[error("cannot connect to {addr}: no TLS within {limit:?}")]
    Timeout {
        /// Where to.
        addr: SocketAddr,
        /// How long was waited.
        limit: Duration,
    },
    /// One of the two has no certificate.
    #[error("cannot connect to {addr} over TLS: {who} has no certificate")]
    Nameless {
        /// Where to.
        addr: SocketAddr,
        /// Which of the two.
        who: &'static str,
    },
    /// The name of an incarnation is no name.
    #[error("{name:?} cannot be called: {source}")]
    Name {
        /// The name.
        name: String,
        /// Why.
        source: InvalidDnsNameError,
    },
    /// The handshake failed, on either side.
    #[error("cannot shake hands with {name} at {addr}: {source}")]
    Handshake {
        /// Where to.
        addr: SocketAddr,
        /// Who was called.
        name: String,
        /// What rustls says.
        source: io::Error,
    },
    /// Another one than was called, or taken back.
    #[error("{addr} is not to be called: {refusal}")]
    Peer {
        /// Where to.
        addr: SocketAddr,
        /// Why.
        refusal: Refusal,
    },
}

/// See the module's text. Cheap to clone. Sessions belong to what [`Connector::new`] returned and its clones: make it once for each
/// change of credentials or trust, and clear the sessions then.
#[derive(Debug, Clone)]
pub struct Connector {
    tls13: Ends,
    tls12: Ends,
    sessions: Arc<Sessions>,
    trust: Trust,
}

/// One for each protocol: it offers what its user then speaks.
#[derive(Debug, Clone)]
struct Ends {
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

impl From<ClientConfig> for Ends {
    fn from(config: ClientConfig) -> Self {
        let offering = |protocol: &[u8]| {
            let mut config = config.clone(); // shares verifier, credentials and sessions
            config.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(config)
        };
        Self { http1: offering(b"http/1.1"), http2: offering(b"h2") }
    }
}

impl Connector {
    /// For calls as `credentials` to whom `trust` admits.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn new(credentials: &Credentials, trust: &Trust, sessions: &Arc<Sessions>) -> Result<Self, ConfigError> {
        Ok(Self {
            tls13: config::caller(credentials, trust, &TLS13, Some(sessions))?.into(),
            tls12: config::caller(credentials, trust, &TLS12, None)?.into(),
            sessions: Arc::clone(sessions),
            trust: trust.clone(),
        })
    }

    /// The same with the same sessions, that trusts others: somebody was taken back.
    #[must_use]
    pub fn trusting(&self, trust: Trust) -> Self {
        Self { trust, ..self.clone() }
    }

    /// Forgets the sessions of an incarnation that is gone, or has a new certificate: those of the old one end with it.
    pub fn forget(&self, name: &str) {
        self.sessions.forget(name);
    }

    /// Opens a connection to the incarnation `name`; with it comes what its certificate says.
    ///
    /// # Errors
    /// See [`DialError`].
    pub async fn dial(
        &self,
        addr: SocketAddr,
        name: &str,
        version: Version,
        protocol: Protocol,
        limit: Duration,
    ) -> Result<(CallerStream<TcpStream>, Peer), DialError> {
        let dialing = self.secure(addr, name, self.end(version, protocol));
        tokio::time::timeout(limit, dialing).await.unwrap_or(Err(DialError::Timeout { addr, limit }))
    }

    async fn secure(
        &self,
        addr: SocketAddr,
        name: &str,
        end: &Arc<ClientConfig>,
    ) -> Result<(CallerStream<TcpStream>, Peer), DialError> {
        let called = ServerName::try_from(name.to_owned());
        let called = called.map_err(|source| DialError::Name { name: name.to_owned(), source })?;
        let stream = TcpStream::connect(addr).await.and_then(|stream| stream.set_nodelay(true).map(|()| stream));
        let stream = stream.map_err(|source| DialError::Io { addr, source })?;
        let handshake = TlsConnector::from(Arc::clone(end)).connect(called, stream).await;
        let handshake = handshake.map_err(|source| DialError::Handshake { addr, name: name.to_owned(), source });
        let stream = handshake.map(CallerStream::new)?;
        let peer = self.check(&stream, name).map_err(|refusal| DialError::Peer { addr, refusal })?;
        Ok((stream, peer))
    }

    fn end(&self, version: Version, protocol: Protocol) -> &Arc<ClientConfig> {
        let ends = match version {
            Version::Tls13 => &self.tls13,
            Version::Tls12 => &self.tls12,
        };
        match protocol {
            Protocol::Http1 => &ends.http1,
            Protocol::Http2 => &ends.http2,
        }
    }

    /// rustls has checked chain and name, of a resumed session when that began; what was taken back since it does not know.
    /// Then the next handshake is a full one.
    fn check(&self, stream: &CallerStream<TcpStream>, name: &str) -> Result<Peer, Refusal> {
        let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
        self.trust.admit_as(shown, name, SystemTime::now()).inspect_err(|_| self.forget(name))
    }
}
