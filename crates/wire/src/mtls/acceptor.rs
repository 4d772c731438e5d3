//! A worker's side: who it is and whom it admits, as its node says; and each connection's standing.

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
use crate::identity::{PeerIdentity, PeerRefusal, Trust};
use crate::quic::RefusalStats;
use crate::zero_rtt::{Provision, WorkerSessions};

/// Sessions that a worker remembers. Callers keep their connections: few come anew at the same time.
const MAX_SESSIONS: usize = 1024;
/// Longest that is waited at a time for a certificate's end: clocks are set.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// How long a peer with whom the handshake failed may take to hear why.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum MtlsAcceptError {
    /// This worker has no identity.
    #[error("TLS is not spoken here: the node gave this worker no identity")]
    NoIdentity,
    /// The handshake failed, on either side.
    #[error("the TLS handshake failed: {0}")]
    Handshake(#[from] io::Error),
    /// The peer stopped in the middle of it.
    #[error("the TLS handshake was not complete within {0:?}")]
    Timeout(Duration),
}

/// See the module's text.
#[derive(Debug)]
pub struct MtlsAcceptor {
    state: watch::Sender<AcceptorState>,
    sessions: Arc<WorkerSessions>,
    refusals: watch::Sender<RefusalStats>,
}

#[derive(Debug, Clone)]
enum AcceptorState {
    /// The node has not yet said who this is.
    AwaitingProvision,
    Provisioned(WorkerTlsConfigs, Trust),
    /// It will not.
    NoIdentity,
}

impl MtlsAcceptor {
    /// One that waits for its first provision; or, if there is to be none, stays shut.
    pub fn new(awaited: bool) -> Self {
        let state = if awaited {
            AcceptorState::AwaitingProvision
        } else {
            AcceptorState::NoIdentity
        };
        let sessions = Arc::new(WorkerSessions::with_capacity(None, MAX_SESSIONS));
        Self {
            state: watch::Sender::new(state),
            sessions: sessions,
            refusals: watch::Sender::default(),
        }
    }

    /// Takes what the node gave, at first or when it changed. Connections that are open stay, unless their peer is not admitted any more.
    ///
    /// # Errors
    /// See [`TlsConfigError`]; everything stays as it was.
    pub fn apply_provision(&self, provision: &Provision) -> Result<(), TlsConfigError> {
        let trust = provision.worker_trust()?;
        let worker = WorkerTlsConfigs::new(&provision.credentials, &trust, self.sessions.clone())?;
        let left = provision
            .credentials
            .not_after
            .duration_since(SystemTime::now())
            .unwrap_or_default();
        self.sessions.set_certificate_end(Instant::now() + left);
        self.state
            .send_replace(AcceptorState::Provisioned(worker, trust));
        Ok(())
    }

    /// There will be no provision. What was given stays good.
    pub fn stop_waiting(&self) {
        self.state.send_if_modified(|rules| {
            let awaited = matches!(rules, AcceptorState::AwaitingProvision);
            if awaited {
                *rules = AcceptorState::NoIdentity;
            }
            awaited
        });
    }

    /// Whether connections may begin with TLS: only then are their first bytes worth a look.
    pub fn may_accept_tls(&self) -> bool {
        !matches!(*self.state.borrow(), AcceptorState::NoIdentity)
    }

    /// Who was not let in; changes with each.
    pub fn refusals(&self) -> watch::Receiver<RefusalStats> {
        self.refusals.subscribe()
    }

    /// Its sessions.
    pub fn sessions(&self) -> &WorkerSessions {
        &self.sessions
    }

    /// Shakes hands with `from` within `limit`. Whether the peer is admitted, the [`AcceptedPeer`] knows.
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
        let accepted = tokio::time::timeout(limit, self.handshake(stream)).await;
        let accepted = accepted.unwrap_or(Err((MtlsAcceptError::Timeout(limit), None)));
        let why = match &accepted {
            Ok((_, peer)) => peer
                .admit_peer(SystemTime::now())
                .err()
                .map(|refusal| refusal.to_string()),
            Err((error, _)) => Some(error.to_string()),
        };
        why.into_iter().for_each(|why| {
            self.refusals
                .send_modify(|refused| refused.record(from, &why))
        });
        match accepted {
            Ok(accepted) => Ok(accepted),
            Err((error, stream)) => {
                if let Some(stream) = stream {
                    let _ = tokio::time::timeout(CLOSE_GRACE, drain_after_alert(stream)).await; // who stays longer is cut
                }
                Err(error)
            }
        }
    }

    /// With an error comes the stream, if the peer was told of it.
    async fn handshake<S>(
        &self,
        stream: S,
    ) -> Result<(TlsStream<S>, AcceptedPeer), (MtlsAcceptError, Option<S>)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut states = self.state.subscribe();
        let settled = states
            .wait_for(|rules| !matches!(rules, AcceptorState::AwaitingProvision))
            .await;
        let Ok(AcceptorState::Provisioned(worker, _)) = settled.map(|rules| rules.clone()) else {
            return Err((MtlsAcceptError::NoIdentity, None));
        };
        let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await;
        let start = start.map_err(|error| (error.into(), None))?;
        let config = worker.config_for(&start.client_hello());
        let stream = start.into_stream(config).into_fallible().await;
        let stream = stream.map_err(|(error, stream)| (error.into(), Some(stream)))?;
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let peer = AcceptedPeer {
            certificates: certificates
                .iter()
                .map(|one| one.clone().into_owned())
                .collect(),
            state: states,
        };
        Ok((stream, peer))
    }
}

/// Ends a stream on which an alert was sent. What the peer has sent beside it is read: closed with that unread, the kernel would answer with a
/// reset, which may overtake the alert.
async fn drain_after_alert<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let _ = stream.shutdown().await; // it may be gone already
    let mut unwanted = [0; 1024];
    while let Ok(1..) = stream.read(&mut unwanted).await {}
}

impl WorkerTlsConfigs {
    /// TLS 1.3 for all who can: no caller that offers one of its ciphers goes without it.
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

/// Who is at the other end of one connection.
#[derive(Debug)]
pub struct AcceptedPeer {
    certificates: Vec<CertificateDer<'static>>,
    state: watch::Receiver<AcceptorState>,
}

impl AcceptedPeer {
    /// Looks at what the peer showed, now or when its session began.
    ///
    /// # Errors
    /// See [`PeerRefusal`]; its text may go to the peer.
    pub fn admit_peer(&self, now: SystemTime) -> Result<PeerIdentity, PeerRefusal> {
        match &*self.state.borrow() {
            AcceptorState::Provisioned(_, trust) => trust.admit_peer(&self.certificates, now),
            AcceptorState::AwaitingProvision | AcceptorState::NoIdentity => {
                Err(PeerRefusal::NoCertificate)
            }
        }
    }

    /// Returns when others are admitted than before, or the same for another reason.
    pub async fn policy_changed(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Returns when the peer is not admitted any more: the connection is to end, or to take no new calls.
    pub async fn wait_refused(&mut self) -> PeerRefusal {
        loop {
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
