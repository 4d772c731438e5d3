//! The worker's side of mutual TLS: accepts connections with the identity and trust from its node.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::{Acceptor, ClientHello};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::TlsConfigError;
use super::config::WorkerTlsConfigs;
use crate::identity::{PeerIdentity, PeerRefusal, RefusalReason, Trust};
use crate::quic::RefusalStats;
use crate::zero_rtt::{Provision, WorkerSessions};

/// Maximum number of sessions of a worker. Callers keep their connections, so few reconnect at the
/// same time.
const MAX_SESSIONS: usize = 1024;
/// Maximum time between two checks of a certificate's end: clocks can be adjusted.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// Time that a refused peer has to read the TLS alert.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Reasons why a connection was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum MtlsAcceptError {
    /// The worker has no identity.
    #[error("TLS unavailable: this instance has no certificate")]
    NoIdentity,
    /// The handshake failed on either side.
    #[error("the TLS handshake failed: {0}")]
    Handshake(#[from] io::Error),
    /// The peer did not complete the handshake in time.
    #[error("the TLS handshake was not complete within {0:?}")]
    Timeout(Duration),
}

/// Accepts mutual TLS connections for one worker.
#[derive(Debug)]
pub struct MtlsAcceptor {
    state: watch::Sender<AcceptorState>,
    sessions: Arc<WorkerSessions>,
    refusals: watch::Sender<RefusalStats>,
}

#[derive(Debug, Clone)]
enum AcceptorState {
    /// The node has not provisioned the worker yet.
    AwaitingProvision,
    Provisioned(WorkerTlsConfigs, Trust),
    /// The node will not provision the worker.
    NoIdentity,
}

impl MtlsAcceptor {
    /// Creates an acceptor that waits for its first provision, or refuses every connection if
    /// `awaited` is false.
    pub fn new(awaited: bool) -> Self {
        let state = if awaited {
            AcceptorState::AwaitingProvision
        } else {
            AcceptorState::NoIdentity
        };
        let sessions = Arc::new(WorkerSessions::with_capacity(None, MAX_SESSIONS));
        Self {
            state: watch::Sender::new(state),
            sessions,
            refusals: watch::Sender::default(),
        }
    }

    /// Applies a provision from the node. Open connections stay, unless their peer is not admitted
    /// any more.
    ///
    /// # Errors
    /// See [`TlsConfigError`]; the previous state is kept.
    pub fn apply_provision(&self, provision: &Provision) -> Result<(), TlsConfigError> {
        let trust = provision.worker_trust()?;
        let worker = WorkerTlsConfigs::new(&provision.credentials, &trust, self.sessions.clone())?;
        let left = provision
            .credentials
            .not_after
            .duration_since(SystemTime::now())
            .unwrap_or_default();
        // Before the new state is published: sessions of new handshakes end with the new
        // certificate.
        self.sessions.set_certificate_end(Instant::now() + left);
        self.state
            .send_replace(AcceptorState::Provisioned(worker, trust));
        Ok(())
    }

    /// Reports that no provision will come. An earlier provision stays valid.
    pub fn stop_waiting(&self) {
        // Watchers wake up only for a real change: an earlier provision stays in force.
        self.state.send_if_modified(|state| {
            let awaited = matches!(state, AcceptorState::AwaitingProvision);
            if awaited {
                *state = AcceptorState::NoIdentity;
            }
            awaited
        });
    }

    /// Returns true if connections may start with TLS. Only then the first bytes must be inspected.
    pub fn may_accept_tls(&self) -> bool {
        !matches!(*self.state.borrow(), AcceptorState::NoIdentity)
    }

    /// Counts refused peers; changes with each of them.
    pub fn refusals(&self) -> watch::Receiver<RefusalStats> {
        self.refusals.subscribe()
    }

    /// Sessions of the worker.
    pub fn sessions(&self) -> &WorkerSessions {
        &self.sessions
    }

    /// Performs the handshake with `from` within `limit`. The returned [`AcceptedPeer`] decides
    /// about admission.
    ///
    /// # Errors
    /// See [`MtlsAcceptError`].
    pub async fn accept_peer<S>(
        &self,
        stream: S,
        from: SocketAddr,
        limit: Duration,
    ) -> Result<(TlsStream<S>, AcceptedPeer), MtlsAcceptError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // The limit includes the wait for the first provision.
        let accepted = tokio::time::timeout(limit, self.handshake(stream)).await;
        let accepted = accepted.unwrap_or(Err((MtlsAcceptError::Timeout(limit), None)));
        let why = match &accepted {
            Ok((_, peer)) => peer
                .admit_peer(SystemTime::now())
                .err()
                .map(|refusal| ((&refusal).into(), refusal.to_string())),
            Err((error, _)) => Some((RefusalReason::Handshake, error.to_string())),
        };
        why.into_iter().for_each(|(reason, why)| {
            self.refusals
                .send_modify(|refused| refused.record(&from, reason, &why))
        });
        match accepted {
            Ok(accepted) => Ok(accepted),
            Err((error, stream)) => {
                if let Some(stream) = stream {
                    // a peer that keeps the stream open is cut
                    let _ = tokio::time::timeout(CLOSE_GRACE, drain_after_alert(stream)).await;
                }
                Err(error)
            }
        }
    }

    /// Performs the handshake. An error carries the stream if an alert was sent on it.
    async fn handshake<S>(
        &self,
        stream: S,
    ) -> Result<(TlsStream<S>, AcceptedPeer), (MtlsAcceptError, Option<S>)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut states = self.state.subscribe();
        let settled = states
            .wait_for(|state| !matches!(state, AcceptorState::AwaitingProvision))
            .await;
        // The state is cloned, so that the watch's lock is not held during the handshake.
        let Ok(AcceptorState::Provisioned(worker, _)) = settled.map(|state| state.clone()) else {
            return Err((MtlsAcceptError::NoIdentity, None));
        };
        // The ClientHello is read first: it decides between the configurations of both versions.
        let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await;
        let start = start.map_err(|error| (error.into(), None))?;
        let config = worker.config_for(&start.client_hello());
        // `into_fallible` returns the stream with an error, so that the alert can be delivered.
        let stream = start.into_stream(config).into_fallible().await;
        let stream = stream.map_err(|(error, stream)| (error.into(), Some(stream)))?;
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let peer = AcceptedPeer {
            certificates: certificates
                .iter()
                .map(|certificate| certificate.clone().into_owned())
                .collect(),
            state: states,
        };
        Ok((stream, peer))
    }
}

/// Closes a stream after an alert was sent, and reads what the peer still sends. Closed with unread
/// data, the kernel would send a reset, which may overtake the alert.
async fn drain_after_alert<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let _ = stream.shutdown().await; // the peer may have closed it
    let mut unwanted = [0; 1024];
    while let Ok(1..) = stream.read(&mut unwanted).await {}
}

impl WorkerTlsConfigs {
    /// Chooses TLS 1.3 for every caller that offers one of its cipher suites.
    fn config_for(&self, hello: &ClientHello<'_>) -> Arc<ServerConfig> {
        let own = &self.tls13.crypto_provider().cipher_suites;
        match own
            .iter()
            .any(|own| hello.cipher_suites().contains(&own.suite()))
        {
            true => Arc::clone(&self.tls13),
            false => Arc::clone(&self.tls12),
        }
    }
}

/// Peer of an accepted connection.
#[derive(Debug)]
pub struct AcceptedPeer {
    certificates: Vec<CertificateDer<'static>>,
    state: watch::Receiver<AcceptorState>,
}

impl AcceptedPeer {
    /// Checks the peer's certificate, sent now or when its session began.
    ///
    /// # Errors
    /// See [`PeerRefusal`]; its text may be sent to the peer.
    pub fn admit_peer(&self, now: SystemTime) -> Result<PeerIdentity, PeerRefusal> {
        match &*self.state.borrow() {
            AcceptorState::Provisioned(_, trust) => trust.admit_peer(&self.certificates, now),
            AcceptorState::AwaitingProvision | AcceptorState::NoIdentity => {
                Err(PeerRefusal::NoCertificate)
            }
        }
    }

    /// Returns when the trust has changed.
    pub async fn policy_changed(&mut self) {
        if self.state.changed().await.is_err() {
            // The acceptor is gone, so the trust stays as it is.
            std::future::pending().await
        }
    }

    /// Returns when the peer is not admitted any more. The connection must then end, or take no new
    /// calls.
    pub async fn wait_refused(&mut self) -> PeerRefusal {
        loop {
            // Before the check: a change during it must wake the wait below.
            self.state.mark_unchanged();
            let now = SystemTime::now();
            let peer = match self.admit_peer(now) {
                Ok(peer) => peer,
                Err(refusal) => return refusal,
            };
            tokio::select! {
                changed = self.state.changed() => if changed.is_err() { std::future::pending().await },
                () = tokio::time::sleep(peer.remaining_validity(now).min(EXPIRY_CHECK_INTERVAL)) => {}
            }
        }
    }
}
