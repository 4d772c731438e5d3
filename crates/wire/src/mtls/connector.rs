//! The caller's side of mutual TLS: opens connections to incarnations of workers, which it knows by
//! name.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ClientConfig;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::version::{TLS12, TLS13};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{CallerStream, TlsConfigError, config};
use crate::identity::{Credentials, PeerIdentity, PeerRefusal, Trust};
use crate::zero_rtt::CallerSessions;

/// Version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TlsVersion {
    /// TLS 1.3 (RFC 8446). Later connections resume sessions of earlier ones.
    Tls13,
    /// TLS 1.2 (RFC 5246). Every handshake is a full one.
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

/// Protocol of a connection, which the worker learns through ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AlpnProtocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// Reasons why a connection could not be opened. In every case nothing of a request was sent.
#[derive(Debug, thiserror::Error)]
pub enum TlsDialError {
    /// The TCP connection failed.
    #[error("cannot connect to {addr}: {source}")]
    Io {
        /// Address that was dialed.
        addr: SocketAddr,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The connection or the handshake took too long.
    #[error("cannot connect to {addr}: no TLS connection within {limit:?}")]
    Timeout {
        /// Address that was dialed.
        addr: SocketAddr,
        /// Time limit.
        limit: Duration,
    },
    /// The caller or the worker has no certificate.
    #[error("cannot connect to {addr} over TLS: {who} has no certificate")]
    NoCertificate {
        /// Address that was dialed.
        addr: SocketAddr,
        /// The side without a certificate.
        who: &'static str,
    },
    /// The worker's name is not a DNS name.
    #[error("invalid worker name {name:?}: {source}")]
    InvalidName {
        /// The name.
        name: String,
        /// Reason of the failure.
        source: InvalidDnsNameError,
    },
    /// The handshake failed on either side.
    #[error("TLS handshake with {name} at {addr} failed: {source}")]
    Handshake {
        /// Address that was dialed.
        addr: SocketAddr,
        /// Name of the worker.
        name: String,
        /// Error of rustls.
        source: io::Error,
    },
    /// The peer is another worker, or its certificate was revoked.
    #[error("unexpected peer at {addr}: {refusal}")]
    PeerRefused {
        /// Address that was dialed.
        addr: SocketAddr,
        /// Reason of the failure.
        refusal: PeerRefusal,
    },
}

/// Opens mutual TLS connections. Cheap to clone. Sessions belong to the value that
/// [`MtlsConnector::new`] returned and to its clones. Create a new one for each change of
/// credentials or trust, and clear the sessions then.
#[derive(Debug, Clone)]
pub struct MtlsConnector {
    tls13: AlpnConfigs,
    tls12: AlpnConfigs,
    sessions: Arc<CallerSessions>,
    trust: Trust,
}

/// One configuration for each protocol, which offers only that protocol.
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
    /// Creates a connector with `credentials` for workers that `trust` admits.
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

    /// Returns a connector with the same sessions and another trust, after a revocation.
    #[must_use]
    pub fn with_trust(&self, trust: Trust) -> Self {
        Self {
            trust,
            ..self.clone()
        }
    }

    /// Removes the sessions of an incarnation that has ended or has a new certificate. Sessions end
    /// with the certificate.
    pub fn forget_sessions(&self, name: &str) {
        self.sessions.forget_worker(name);
    }

    /// Opens a connection to the incarnation `name`, and returns it with the identity in the
    /// worker's certificate.
    ///
    /// # Errors
    /// See [`TlsDialError`].
    pub async fn dial_worker(
        &self,
        addr: SocketAddr,
        name: &str,
        version: TlsVersion,
        protocol: AlpnProtocol,
        limit: Duration,
    ) -> Result<(CallerStream<TcpStream>, PeerIdentity), TlsDialError> {
        let connecting = async {
            let stream = TcpStream::connect(addr).await?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        self.dial_over(connecting, (addr, name), (version, protocol), limit)
            .await
    }

    /// Opens a connection over the TCP connection that `connecting` makes, with `TCP_NODELAY`. See
    /// [`dial_worker`](Self::dial_worker).
    ///
    /// # Errors
    /// See [`TlsDialError`].
    pub async fn dial_over<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        connecting: impl Future<Output = io::Result<S>>,
        (addr, name): (SocketAddr, &str),
        (version, protocol): (TlsVersion, AlpnProtocol),
        limit: Duration,
    ) -> Result<(CallerStream<S>, PeerIdentity), TlsDialError> {
        let config = self.config_for(version, protocol);
        let attempt = self.connect_tls(connecting, (addr, name), config);
        tokio::time::timeout(limit, attempt)
            .await
            .unwrap_or(Err(TlsDialError::Timeout { addr, limit }))
    }

    async fn connect_tls<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        connecting: impl Future<Output = io::Result<S>>,
        (addr, name): (SocketAddr, &str),
        config: &Arc<ClientConfig>,
    ) -> Result<(CallerStream<S>, PeerIdentity), TlsDialError> {
        let server_name = ServerName::try_from(name.to_owned());
        let server_name = server_name.map_err(|source| TlsDialError::InvalidName {
            name: name.to_owned(),
            source,
        })?;
        let stream = connecting
            .await
            .map_err(|source| TlsDialError::Io { addr, source })?;
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

    /// Checks for revocation, which rustls does not know. rustls verified chain and name, for a
    /// resumed session when that began. After a refusal the next handshake is a full one.
    fn admit_worker<S>(
        &self,
        stream: &CallerStream<S>,
        name: &str,
    ) -> Result<PeerIdentity, PeerRefusal> {
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        self.trust
            .admit_named_peer(certificates, name, SystemTime::now())
            .inspect_err(|_| self.forget_sessions(name))
    }
}
