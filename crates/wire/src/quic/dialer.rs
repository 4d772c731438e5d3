//! The caller's side: how a connection begins.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use quinn::{ClientConfig, ConnectError, ConnectionError, Endpoint, ZeroRttAccepted};
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

use super::caller_connection::{CallerConnection, HandshakeStage};
use super::close_code;
use super::config::IDLE_TIMEOUT;
use crate::identity::{PeerIdentity, PeerRefusal, Trust};

/// Opens connections of one thread: one UDP socket.
#[derive(Debug, Clone)]
pub struct Dialer {
    endpoint: Endpoint,
    config: ClientConfig,
    trust: Trust,
    idle_timeout: Duration,
}

/// Why there is no connection. Nothing was sent that could have run.
#[derive(Debug, thiserror::Error)]
pub enum QuicDialError {
    /// The name is none, or the endpoint is closed.
    #[error("cannot call {addr}: {source}")]
    InvalidTarget {
        /// Where to.
        addr: SocketAddr,
        /// Why.
        source: ConnectError,
    },
    /// No answer, a refusal, or no common protocol.
    #[error("cannot connect to {addr}: {source}")]
    Handshake {
        /// Where to.
        addr: SocketAddr,
        /// Why.
        source: ConnectionError,
    },
    /// The peer did not answer in time.
    #[error("cannot connect to {addr}: no answer over UDP within {limit:?}")]
    Timeout {
        /// Where to.
        addr: SocketAddr,
        /// How long was waited.
        limit: Duration,
    },
    /// Another one than was called.
    #[error("{addr} is not who was called: {refusal}")]
    PeerRefused {
        /// Where to.
        addr: SocketAddr,
        /// Why.
        refusal: PeerRefusal,
    },
}

impl QuicDialError {
    /// Nothing came back: another transport may get through, and loses nothing of what this one would have proved.
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
    /// On this endpoint, as `config` says ([`super::config::caller_config`]).
    pub fn new(endpoint: Endpoint, config: ClientConfig, trust: Trust) -> Self {
        Self {
            endpoint,
            config,
            trust,
            idle_timeout: IDLE_TIMEOUT,
        }
    }

    /// Ends connections on which nobody has called for so long, or up to twice that; [`IDLE`] unless told otherwise.
    #[must_use]
    pub fn with_idle_timeout(self, idle_timeout: Duration) -> Self {
        Self {
            idle_timeout,
            ..self
        }
    }

    /// The same socket, for who calls as somebody else or trusts others.
    #[must_use]
    pub(super) fn with_caller(&self, config: ClientConfig, trust: Trust) -> Self {
        Self {
            endpoint: self.endpoint.clone(),
            config,
            trust,
            idle_timeout: self.idle_timeout,
        }
    }

    /// Opens a connection to the incarnation `name`; at once, if there is a session for it. Either way the handshake ends within `limit`.
    /// Must run inside a `LocalSet`.
    ///
    /// # Errors
    /// See [`DialError`].
    pub async fn dial_worker(
        &self,
        addr: SocketAddr,
        name: &str,
        limit: Duration,
    ) -> Result<CallerConnection, QuicDialError> {
        let started = self.endpoint.connect_with(self.config.clone(), addr, name);
        let connecting = started.map_err(|source| QuicDialError::InvalidTarget { addr, source })?;
        match connecting.into_0rtt() {
            Ok((connection, accepted)) => Ok(self.dial_early(connection, accepted, name, limit)),
            Err(connecting) => {
                let done = tokio::time::timeout(limit, connecting).await;
                let done = done.map_err(|_| QuicDialError::Timeout { addr, limit })?;
                let connection =
                    done.map_err(|source| QuicDialError::Handshake { addr, source })?;
                let peer = self
                    .admit_worker(&connection, name)
                    .map_err(|refusal| QuicDialError::PeerRefused { addr, refusal })?;
                let opened = CallerConnection::new(
                    connection,
                    watch::channel(HandshakeStage::Done { early: false }).1,
                    self.idle_timeout,
                );
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
        let (dialer, name, one) = (self.clone(), name.to_owned(), opened.clone());
        tokio::task::spawn_local(async move {
            let Ok(early) = tokio::time::timeout(limit, accepted).await else {
                stage_sender.send_replace(HandshakeStage::TimedOut(limit)); // before the calls break
                return one.close();
            };
            stage_sender.send_replace(dialer.handshake_outcome(&one, &name, early));
        });
        opened
    }

    fn handshake_outcome(
        &self,
        opened: &CallerConnection,
        name: &str,
        early: bool,
    ) -> HandshakeStage {
        if let Some(error) = opened.connection().close_reason() {
            return HandshakeStage::Failed(error.to_string().into());
        }
        match self.admit_worker(opened.connection(), name) {
            Ok(peer) => {
                opened.set_certificate_end(peer.not_after);
                HandshakeStage::Done { early }
            }
            Err(refusal) => HandshakeStage::Failed(refusal.to_string().into()),
        }
    }

    /// rustls has checked chain and name; what it does not know is when a certificate was taken back.
    fn admit_worker(
        &self,
        connection: &quinn::Connection,
        name: &str,
    ) -> Result<PeerIdentity, PeerRefusal> {
        let checked =
            self.trust
                .admit_named_peer(&peer_certificates(connection), name, SystemTime::now());
        if let Err(refusal) = &checked {
            connection.close(close_code::REFUSED, refusal.to_string().as_bytes());
        }
        checked
    }
}

/// What the peer showed, now or when the session began.
pub(super) fn peer_certificates(connection: &quinn::Connection) -> Vec<CertificateDer<'static>> {
    let identity = connection
        .peer_identity()
        .and_then(|shown| shown.downcast::<Vec<CertificateDer<'static>>>().ok());
    identity.map(|shown| *shown).unwrap_or_default()
}
