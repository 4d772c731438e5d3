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

use super::{CallerStream, TlsConfigError, config};
use crate::identity::{Credentials, PeerIdentity, PeerRefusal, Trust};
use crate::zero_rtt::CallerSessions;

/// Version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TlsVersion {
    /// RFC 8446; later connections resume sessions of earlier ones.
    Tls13,
    /// RFC 5246; every handshake is a full one.
    Tls12,
}

impl fmt::Display for TlsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls13 => "TLS 1.3",
            Self::Tls12 => "TLS 1.2",
        })
    }
}

/// What is spoken on a connection; the worker is told so (ALPN).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AlpnProtocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// Why there is no connection. In every case nothing of a request was sent.
#[derive(Debug, thiserror::Error)]
pub enum TlsDialError {
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
    NoCertificate {
        /// Where to.
        addr: SocketAddr,
        /// Which of the two.
        who: &'static str,
    },
    /// The name of an incarnation is no name.
    #[error("{name:?} cannot be called: {source}")]
    InvalidName {
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
    PeerRefused {
        /// Where to.
        addr: SocketAddr,
        /// Why.
        refusal: PeerRefusal,
    },
}

/// See the module's text. Cheap to clone. Sessions belong to what [`MtlsConnector::new`] returned and its clones: make it once for each
/// change of credentials or trust, and clear the sessions then.
#[derive(Debug, Clone)]
pub struct MtlsConnector {
    tls13: AlpnConfigs,
    tls12: AlpnConfigs,
    sessions: Arc<CallerSessions>,
    trust: Trust,
}

/// One for each protocol: it offers what its user then speaks.
#[derive(Debug, Clone)]
struct AlpnConfigs {
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

impl From<ClientConfig> for AlpnConfigs {
    fn from(config: ClientConfig) -> Self {
        let config_offering = |protocol: &[u8]| {
            let mut config = config.clone(); // shares verifier, credentials and sessions
            config.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(config)
        };
        Self {
            http1: config_offering(b"http/1.1"),
            http2: config_offering(b"h2"),
        }
    }
}

impl MtlsConnector {
    /// For calls as `credentials` to whom `trust` admits.
    ///
    /// # Errors
    /// See [`TlsConfigError`].
    pub fn new(
        credentials: &Credentials,
        trust: &Trust,
        sessions: &Arc<CallerSessions>,
    ) -> Result<Self, TlsConfigError> {
        Ok(Self {
            tls13: config::caller_config(credentials, trust, &TLS13, Some(sessions))?.into(),
            tls12: config::caller_config(credentials, trust, &TLS12, None)?.into(),
            sessions: Arc::clone(sessions),
            trust: trust.clone(),
        })
    }

    /// The same with the same sessions, that trusts others: somebody was taken back.
    #[must_use]
    pub fn with_trust(&self, trust: Trust) -> Self {
        Self {
            trust,
            ..self.clone()
        }
    }

    /// Forgets the sessions of an incarnation that is gone, or has a new certificate: those of the old one end with it.
    pub fn forget_sessions(&self, name: &str) {
        self.sessions.forget_worker(name);
    }

    /// Opens a connection to the incarnation `name`; with it comes what its certificate says.
    ///
    /// # Errors
    /// See [`DialError`].
    pub async fn dial_worker(
        &self,
        addr: SocketAddr,
        name: &str,
        version: TlsVersion,
        protocol: AlpnProtocol,
        limit: Duration,
    ) -> Result<(CallerStream<TcpStream>, PeerIdentity), TlsDialError> {
        let attempt = self.connect_tls(addr, name, self.config_for(version, protocol));
        tokio::time::timeout(limit, attempt)
            .await
            .unwrap_or(Err(TlsDialError::Timeout { addr, limit }))
    }

    async fn connect_tls(
        &self,
        addr: SocketAddr,
        name: &str,
        config: &Arc<ClientConfig>,
    ) -> Result<(CallerStream<TcpStream>, PeerIdentity), TlsDialError> {
        let server_name = ServerName::try_from(name.to_owned());
        let server_name = server_name.map_err(|source| TlsDialError::InvalidName {
            name: name.to_owned(),
            source,
        })?;
        let stream = TcpStream::connect(addr)
            .await
            .and_then(|stream| stream.set_nodelay(true).map(|()| stream));
        let stream = stream.map_err(|source| TlsDialError::Io { addr, source })?;
        let handshake = TlsConnector::from(Arc::clone(config))
            .connect(server_name, stream)
            .await;
        let handshake = handshake.map_err(|source| TlsDialError::Handshake {
            addr,
            name: name.to_owned(),
            source,
        });
        let stream = handshake.map(CallerStream::new)?;
        let peer = self
            .admit_worker(&stream, name)
            .map_err(|refusal| TlsDialError::PeerRefused { addr, refusal })?;
        Ok((stream, peer))
    }

    fn config_for(&self, version: TlsVersion, protocol: AlpnProtocol) -> &Arc<ClientConfig> {
        let configs = match version {
            TlsVersion::Tls13 => &self.tls13,
            TlsVersion::Tls12 => &self.tls12,
        };
        match protocol {
            AlpnProtocol::Http1 => &configs.http1,
            AlpnProtocol::Http2 => &configs.http2,
        }
    }

    /// rustls has checked chain and name, of a resumed session when that began; what was taken back since it does not know.
    /// Then the next handshake is a full one.
    fn admit_worker(
        &self,
        stream: &CallerStream<TcpStream>,
        name: &str,
    ) -> Result<PeerIdentity, PeerRefusal> {
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        self.trust
            .admit_named_peer(certificates, name, SystemTime::now())
            .inspect_err(|_| self.forget_sessions(name))
    }
}
