//! The caller's side: how a connection begins.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use quinn::{ClientConfig, ConnectError, ConnectionError, Endpoint, ZeroRttAccepted};
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

use super::code;
use super::config::IDLE;
use super::line::{Line, Stage};
use crate::identity::{Peer, Refusal, Trust};

/// Opens connections of one thread: one UDP socket.
#[derive(Debug, Clone)]
pub struct Dialer {
    endpoint: Endpoint,
    config: ClientConfig,
    trust: Trust,
    rest: Duration,
}

/// Why there is no connection. Nothing was sent that could have run.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The name is none, or the endpoint is closed.
    #[error("cannot call {addr}: {source}")]
    Begin {
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
    Peer {
        /// Where to.
        addr: SocketAddr,
        /// Why.
        refusal: Refusal,
    },
}

impl DialError {
    /// Nothing came back: another transport may get through, and loses nothing of what this one would have proved.
    pub fn is_silence(&self) -> bool {
        use ConnectionError::{Reset, TimedOut, VersionMismatch};
        match self {
            Self::Timeout { .. } => true,
            Self::Handshake { source, .. } => matches!(source, TimedOut | Reset | VersionMismatch),
            Self::Begin { .. } | Self::Peer { .. } => false,
        }
    }
}

impl Dialer {
    /// On this endpoint, as `config` says ([`super::config::caller`]).
    pub fn new(endpoint: Endpoint, config: ClientConfig, trust: Trust) -> Self {
        Self { endpoint, config, trust, rest: IDLE }
    }

    /// Ends connections on which nobody has called for so long, or up to twice that; [`IDLE`] unless told otherwise.
    #[must_use]
    pub fn resting(self, rest: Duration) -> Self {
        Self { rest, ..self }
    }

    /// The same socket, for who calls as somebody else or trusts others.
    #[must_use]
    pub(super) fn calling(&self, config: ClientConfig, trust: Trust) -> Self {
        Self { endpoint: self.endpoint.clone(), config, trust, rest: self.rest }
    }

    /// Opens a connection to the incarnation `name`; at once, if there is a session for it. Either way the handshake ends within `limit`.
    /// Must run inside a `LocalSet`.
    ///
    /// # Errors
    /// See [`DialError`].
    pub async fn dial(&self, addr: SocketAddr, name: &str, limit: Duration) -> Result<Line, DialError> {
        let begun = self.endpoint.connect_with(self.config.clone(), addr, name);
        let connecting = begun.map_err(|source| DialError::Begin { addr, source })?;
        match connecting.into_0rtt() {
            Ok((connection, accepted)) => Ok(self.early(connection, accepted, name, limit)),
            Err(connecting) => {
                let done = tokio::time::timeout(limit, connecting).await;
                let done = done.map_err(|_| DialError::Timeout { addr, limit })?;
                let connection = done.map_err(|source| DialError::Handshake { addr, source })?;
                let peer = self.check(&connection, name).map_err(|refusal| DialError::Peer { addr, refusal })?;
                let line = Line::new(connection, watch::channel(Stage::Done { early: false }).1, self.rest);
                line.good_until(peer.not_after);
                Ok(line)
            }
        }
    }

    fn early(&self, connection: quinn::Connection, accepted: ZeroRttAccepted, name: &str, limit: Duration) -> Line {
        let (tell, stage) = watch::channel(Stage::Early);
        let line = Line::new(connection, stage, self.rest);
        let (dialer, name, one) = (self.clone(), name.to_owned(), line.clone());
        tokio::task::spawn_local(async move {
            let Ok(early) = tokio::time::timeout(limit, accepted).await else {
                tell.send_replace(Stage::Silent(limit)); // before the calls break
                return one.close();
            };
            tell.send_replace(dialer.outcome(&one, &name, early));
        });
        line
    }

    fn outcome(&self, line: &Line, name: &str, early: bool) -> Stage {
        if let Some(error) = line.connection().close_reason() {
            return Stage::Failed(error.to_string().into());
        }
        match self.check(line.connection(), name) {
            Ok(peer) => {
                line.good_until(peer.not_after);
                Stage::Done { early }
            }
            Err(refusal) => Stage::Failed(refusal.to_string().into()),
        }
    }

    /// rustls has checked chain and name; what it does not know is when a certificate was taken back.
    fn check(&self, connection: &quinn::Connection, name: &str) -> Result<Peer, Refusal> {
        let checked = self.trust.admit_as(&certificates(connection), name, SystemTime::now());
        if let Err(refusal) = &checked {
            connection.close(code::REFUSED, refusal.to_string().as_bytes());
        }
        checked
    }
}

/// What the peer showed, now or when the session began.
pub(super) fn certificates(connection: &quinn::Connection) -> Vec<CertificateDer<'static>> {
    let shown = connection.peer_identity().and_then(|shown| shown.downcast::<Vec<CertificateDer<'static>>>().ok());
    shown.map(|shown| *shown).unwrap_or_default()
}
