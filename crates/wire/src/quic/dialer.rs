//! The caller's side of opening connections.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use quinn::{ClientConfig, ConnectError, ConnectionError, Endpoint, ZeroRttAccepted};
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

use super::caller_connection::{CallerConnection, HandshakeStage};
use super::close_code;
use super::config::IDLE_TIMEOUT;
use crate::identity::{PeerIdentity, PeerRefusal, Trust};

/// Opens connections of one thread from one UDP socket.
#[derive(Debug, Clone)]
pub struct Dialer {
    endpoint: Endpoint,
    config: ClientConfig,
    trust: Trust,
    idle_timeout: Duration,
}

/// Reasons why a connection could not be opened. Nothing was sent that could have run.
#[derive(Debug, thiserror::Error)]
pub enum QuicDialError {
    /// The name is invalid, or the endpoint is closed.
    #[error("cannot call {addr}: {source}")]
    InvalidTarget {
        /// Address that was dialed.
        addr: SocketAddr,
        /// Reason of the failure.
        source: ConnectError,
    },
    /// The peer did not respond, refused, or shares no protocol.
    #[error("cannot connect to {addr}: {source}")]
    Handshake {
        /// Address that was dialed.
        addr: SocketAddr,
        /// Reason of the failure.
        source: ConnectionError,
    },
    /// The peer did not respond in time.
    #[error("cannot connect to {addr}: no response over UDP within {limit:?}")]
    Timeout {
        /// Address that was dialed.
        addr: SocketAddr,
        /// Time limit.
        limit: Duration,
    },
    /// The peer is not the worker that was called.
    #[error("unexpected peer at {addr}: {refusal}")]
    PeerRefused {
        /// Address that was dialed.
        addr: SocketAddr,
        /// Reason of the failure.
        refusal: Box<PeerRefusal>,
    },
}

impl QuicDialError {
    /// Returns true if nothing was received. Another transport may get through, and this attempt
    /// proved nothing about the call.
    pub fn is_no_response(&self) -> bool {
        use ConnectionError::{Reset, TimedOut, VersionMismatch};
        match self {
            Self::Timeout { .. } => true,
            Self::Handshake { source, .. } => matches!(source, TimedOut | Reset | VersionMismatch),
            Self::InvalidTarget { .. } | Self::PeerRefused { .. } => false,
        }
    }
}

impl Dialer {
    /// Creates a dialer on an endpoint with a configuration from [`super::config::caller_config`].
    pub fn new(endpoint: Endpoint, config: ClientConfig, trust: Trust) -> Self {
        Self {
            endpoint,
            config,
            trust,
            idle_timeout: IDLE_TIMEOUT,
        }
    }

    /// Closes connections without a call for this time, or for up to twice as long. The default is
    /// [`IDLE_TIMEOUT`].
    #[must_use]
    pub fn with_idle_timeout(self, idle_timeout: Duration) -> Self {
        Self {
            idle_timeout,
            ..self
        }
    }

    /// Returns a dialer on the same socket with other credentials or trust.
    #[must_use]
    pub(super) fn with_caller(&self, config: ClientConfig, trust: Trust) -> Self {
        Self {
            endpoint: self.endpoint.clone(),
            config,
            trust,
            idle_timeout: self.idle_timeout,
        }
    }

    /// Opens a connection to the incarnation `name`; at once, if there is a session for it. Either
    /// way the handshake ends within `limit`. Must run inside a `LocalSet`.
    ///
    /// # Errors
    /// See [`QuicDialError`].
    pub async fn dial_worker(
        &self,
        addr: SocketAddr,
        name: &str,
        limit: Duration,
    ) -> Result<CallerConnection, QuicDialError> {
        let started = self.endpoint.connect_with(self.config.clone(), addr, name);
        let connecting = started.map_err(|source| QuicDialError::InvalidTarget { addr, source })?;
        // Succeeds only if a session is stored: then the connection can be used before the
        // handshake.
        match connecting.into_0rtt() {
            Ok((connection, accepted)) => Ok(self.dial_early(connection, accepted, name, limit)),
            Err(connecting) => {
                let done = tokio::time::timeout(limit, connecting).await;
                let done = done.map_err(|_| QuicDialError::Timeout { addr, limit })?;
                let connection =
                    done.map_err(|source| QuicDialError::Handshake { addr, source })?;
                let peer = self.admit_worker(&connection, name).map_err(|refusal| {
                    QuicDialError::PeerRefused {
                        addr,
                        refusal: refusal.into(),
                    }
                })?;
                let opened = CallerConnection::new(
                    connection,
                    watch::channel(HandshakeStage::Done { early: false }).1,
                    self.idle_timeout,
                );
                // Callers check it before each call: no new calls after the certificate's end.
                opened.set_certificate_end(peer.not_after);
                Ok(opened)
            }
        }
    }

    fn dial_early(
        &self,
        connection: quinn::Connection,
        accepted: ZeroRttAccepted,
        name: &str,
        limit: Duration,
    ) -> CallerConnection {
        let (stage_sender, stage) = watch::channel(HandshakeStage::Early);
        let opened = CallerConnection::new(connection, stage, self.idle_timeout);
        let (dialer, name, connection) = (self.clone(), name.to_owned(), opened.clone());
        // The handshake completes in the background, while the first call is under way.
        tokio::task::spawn_local(async move {
            let Ok(early) = tokio::time::timeout(limit, accepted).await else {
                // before the close: failing calls read it
                stage_sender.send_replace(HandshakeStage::TimedOut(limit));
                return connection.close();
            };
            stage_sender.send_replace(dialer.handshake_outcome(&connection, &name, early));
        });
        opened
    }

    fn handshake_outcome(
        &self,
        opened: &CallerConnection,
        name: &str,
        early: bool,
    ) -> HandshakeStage {
        // A lost connection has no certificates: its own error explains more.
        if let Some(error) = opened.connection().close_reason() {
            return HandshakeStage::Failed(error.to_string().into());
        }
        match self.admit_worker(opened.connection(), name) {
            Ok(peer) => {
                opened.set_certificate_end(peer.not_after);
                HandshakeStage::Done { early }
            }
            Err(refusal) => HandshakeStage::Refused(refusal.to_string().into()),
        }
    }

    /// Checks for revocation, which rustls does not know. rustls has verified chain and name.
    fn admit_worker(
        &self,
        connection: &quinn::Connection,
        name: &str,
    ) -> Result<PeerIdentity, PeerRefusal> {
        let checked =
            self.trust
                .admit_named_peer(&peer_certificates(connection), name, SystemTime::now());
        if let Err(refusal) = &checked {
            // Closed at once: no further call may reach this peer.
            connection.close(close_code::REFUSED, refusal.to_string().as_bytes());
        }
        checked
    }
}

/// Certificates of the peer, sent now or when the session began.
pub(super) fn peer_certificates(connection: &quinn::Connection) -> Vec<CertificateDer<'static>> {
    let identity = connection
        .peer_identity()
        .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
    identity
        .map(|certificates| *certificates)
        .unwrap_or_default()
}
