//! Configurations of both ends of connections between nodes, with the sessions that they share.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::{NodeCredentials, NodeCredentialsError};
use crate::mtls::TlsConfigError;
use crate::quic::CallerConfig;
use crate::zero_rtt::{TokenKey, WorkerSessions};

/// Maximum number of sessions over TLS. Nodes keep their connections, so few reconnect at the same
/// time.
const MAX_TLS_SESSIONS: usize = 1024;

/// Credentials of a node with all configurations built from them. Threads share one value: a
/// session that one thread gave may come back to another.
#[derive(Debug)]
pub struct NodeTls {
    credentials: NodeCredentials,
    caller: CallerConfig,
    tls_server: Arc<rustls::ServerConfig>,
    quic_server: quinn::ServerConfig,
    sessions: ServerSessions,
}

/// Reasons why a node cannot connect to others.
#[derive(Debug, thiserror::Error)]
pub enum NodeTlsError {
    /// The files cannot be used.
    #[error(transparent)]
    Credentials(#[from] NodeCredentialsError),
    /// rustls refused the configuration.
    #[error("cannot configure connections between nodes: {0}")]
    Config(#[from] TlsConfigError),
    /// The system's random number generator failed.
    #[error("cannot create the key of address tokens: {0}")]
    TokenKey(#[from] io::Error),
}

/// Sessions of callers. Those of QUIC and TLS differ in their parameters, so each has a store.
#[derive(Debug, Clone)]
struct ServerSessions {
    tls: Arc<WorkerSessions>,
    quic: Arc<WorkerSessions>,
    token_key: TokenKey,
}

impl NodeTls {
    /// Builds the configurations for these credentials.
    ///
    /// # Errors
    /// See [`NodeTlsError`].
    pub fn new(credentials: NodeCredentials) -> Result<Self, NodeTlsError> {
        let sessions = ServerSessions::new(TokenKey::generate()?);
        Ok(Self::with_sessions(credentials, sessions)?)
    }

    /// Builds the configurations for renewed credentials of the same node. Callers keep their
    /// sessions, unless the roots are others: nothing verifies the root of a resumed session again.
    ///
    /// # Errors
    /// See [`NodeTlsError`].
    pub fn renewed(&self, credentials: NodeCredentials) -> Result<Self, NodeTlsError> {
        let sessions = match self.has_same_roots(&credentials) {
            true => self.sessions.clone(),
            false => ServerSessions::new(self.sessions.token_key.clone()),
        };
        Ok(Self::with_sessions(credentials, sessions)?)
    }

    fn with_sessions(
        credentials: NodeCredentials,
        sessions: ServerSessions,
    ) -> Result<Self, TlsConfigError> {
        // Before new handshakes: their sessions end with the new certificate.
        sessions.set_certificate_end(credentials.validity().1);
        let tls = credentials.tls_server_config(sessions.tls.clone())?;
        let quic = credentials.quic_server_config(sessions.quic.clone(), &sessions.token_key)?;
        // New sessions: rustls uses those of another certificate for nothing.
        let caller = credentials.caller_config(&Arc::default())?;
        Ok(Self {
            credentials,
            caller,
            tls_server: Arc::new(tls),
            quic_server: quic,
            sessions,
        })
    }

    /// The credentials.
    pub fn credentials(&self) -> &NodeCredentials {
        &self.credentials
    }

    /// Configuration to dial other nodes with, over QUIC and over TLS. The name to dial is the name
    /// of the node.
    pub fn caller_config(&self) -> &CallerConfig {
        &self.caller
    }

    /// Configuration to serve other nodes over TLS 1.3, with HTTP/2 or HTTP/1.1. The certificates of
    /// each accepted connection must pass [`NodeCredentials::admit_node`].
    pub fn tls_server_config(&self) -> &Arc<rustls::ServerConfig> {
        &self.tls_server
    }

    /// Configuration to serve other nodes over QUIC, for a [`CallServer`](crate::quic::CallServer)
    /// with [`NodeCredentials::trust`].
    pub fn quic_server_config(&self) -> &quinn::ServerConfig {
        &self.quic_server
    }

    /// Returns true if both accept the same roots. After a change, connections with a certificate of
    /// a removed root may still be open: their owner closes them.
    pub fn has_same_roots(&self, credentials: &NodeCredentials) -> bool {
        self.credentials.roots() == credentials.roots()
    }
}

impl ServerSessions {
    fn new(token_key: TokenKey) -> Self {
        Self {
            tls: Arc::new(WorkerSessions::with_capacity(None, MAX_TLS_SESSIONS)),
            quic: Arc::new(WorkerSessions::new(None)),
            token_key,
        }
    }

    fn set_certificate_end(&self, not_after: SystemTime) {
        /// Longer than any session lives, so that the sum below cannot overflow.
        const MAX_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
        let left = not_after
            .duration_since(SystemTime::now())
            .unwrap_or_default();
        let end = Instant::now() + left.min(MAX_LIFETIME);
        self.tls.set_certificate_end(end);
        self.quic.set_certificate_end(end);
    }
}
