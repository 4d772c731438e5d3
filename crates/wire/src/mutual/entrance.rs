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

use super::ConfigError;
use super::config::Worker;
use crate::early::{Provision, Register};
use crate::identity::{Peer, Refusal, Trust};
use crate::quic::Refused;

/// Sessions that a worker remembers. Callers keep their connections: few come anew at the same time.
const SESSIONS: usize = 1024;
/// Longest that is waited at a time for a certificate's end: clocks are set.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);
/// How long a peer with whom the handshake failed may take to hear why.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// This worker has no identity.
    #[error("TLS is not spoken here: the node gave this worker no identity")]
    Shut,
    /// The handshake failed, on either side.
    #[error("the TLS handshake failed: {0}")]
    Handshake(#[from] io::Error),
    /// The peer stopped in the middle of it.
    #[error("the TLS handshake was not complete within {0:?}")]
    Timeout(Duration),
}

/// See the module's text.
#[derive(Debug)]
pub struct Entrance {
    rules: watch::Sender<Rules>,
    register: Arc<Register>,
    refused: watch::Sender<Refused>,
}

#[derive(Debug, Clone)]
enum Rules {
    /// The node has not yet said who this is.
    Awaited,
    Open(Worker, Trust),
    /// It will not.
    Shut,
}

impl Entrance {
    /// One that waits for its first provision; or, if there is to be none, stays shut.
    pub fn new(awaited: bool) -> Self {
        let rules = if awaited { Rules::Awaited } else { Rules::Shut };
        let register = Arc::new(Register::with_room(None, SESSIONS));
        Self { rules: watch::Sender::new(rules), register, refused: watch::Sender::default() }
    }

    /// Takes what the node gave, at first or when it changed. Connections that are open stay, unless their peer is not admitted any more.
    ///
    /// # Errors
    /// See [`ConfigError`]; everything stays as it was.
    pub fn provision(&self, provision: &Provision) -> Result<(), ConfigError> {
        let trust = provision.trust()?;
        let worker = Worker::new(&provision.credentials, &trust, self.register.clone())?;
        let left = provision.credentials.not_after.duration_since(SystemTime::now()).unwrap_or_default();
        self.register.ends(Instant::now() + left);
        self.rules.send_replace(Rules::Open(worker, trust));
        Ok(())
    }

    /// There will be no provision. What was given stays good.
    pub fn give_up(&self) {
        self.rules.send_if_modified(|rules| {
            let awaited = matches!(rules, Rules::Awaited);
            if awaited {
                *rules = Rules::Shut;
            }
            awaited
        });
    }

    /// Whether connections may begin with TLS: only then are their first bytes worth a look.
    pub fn may_open(&self) -> bool {
        !matches!(*self.rules.borrow(), Rules::Shut)
    }

    /// Who was not let in; changes with each.
    pub fn refused(&self) -> watch::Receiver<Refused> {
        self.refused.subscribe()
    }

    /// Its sessions.
    pub fn register(&self) -> &Register {
        &self.register
    }

    /// Shakes hands with `from` within `limit`. Whether the peer is admitted, the [`Guest`] knows.
    ///
    /// # Errors
    /// See [`AcceptError`].
    pub async fn accept<S>(
        &self,
        stream: S,
        from: SocketAddr,
        limit: Duration,
    ) -> Result<(TlsStream<S>, Guest), AcceptError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let accepted = tokio::time::timeout(limit, self.shake_hands(stream)).await;
        let accepted = accepted.unwrap_or(Err((AcceptError::Timeout(limit), None)));
        let why = match &accepted {
            Ok((_, guest)) => guest.admit(SystemTime::now()).err().map(|refusal| refusal.to_string()),
            Err((error, _)) => Some(error.to_string()),
        };
        why.into_iter().for_each(|why| self.refused.send_modify(|refused| refused.add(from, &why)));
        match accepted {
            Ok(accepted) => Ok(accepted),
            Err((error, stream)) => {
                if let Some(stream) = stream {
                    let _ = tokio::time::timeout(LAST_WORDS, see_off(stream)).await; // who stays longer is cut
                }
                Err(error)
            }
        }
    }

    /// With an error comes the stream, if the peer was told of it.
    async fn shake_hands<S>(&self, stream: S) -> Result<(TlsStream<S>, Guest), (AcceptError, Option<S>)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut rules = self.rules.subscribe();
        let ruled = rules.wait_for(|rules| !matches!(rules, Rules::Awaited)).await;
        let Ok(Rules::Open(worker, _)) = ruled.map(|rules| rules.clone()) else {
            return Err((AcceptError::Shut, None));
        };
        let begun = LazyConfigAcceptor::new(Acceptor::default(), stream).await;
        let begun = begun.map_err(|error| (error.into(), None))?;
        let config = worker.chosen_by(&begun.client_hello());
        let stream = begun.into_stream(config).into_fallible().await;
        let stream = stream.map_err(|(error, stream)| (error.into(), Some(stream)))?;
        let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let guest = Guest { shown: shown.iter().map(|one| one.clone().into_owned()).collect(), rules };
        Ok((stream, guest))
    }
}

/// Ends a stream on which an alert was sent. What the peer has sent beside it is read: closed with that unread, the kernel would answer with a
/// reset, which may overtake the alert.
async fn see_off<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let _ = stream.shutdown().await; // it may be gone already
    let mut unwanted = [0; 1024];
    while let Ok(1..) = stream.read(&mut unwanted).await {}
}

impl Worker {
    /// TLS 1.3 for all who can: no caller that offers one of its ciphers goes without it.
    fn chosen_by(&self, hello: &ClientHello<'_>) -> Arc<ServerConfig> {
        let own = &self.tls13.crypto_provider().cipher_suites;
        match own.iter().any(|own| hello.cipher_suites().contains(&own.suite())) {
            true => Arc::clone(&self.tls13),
            false => Arc::clone(&self.tls12),
        }
    }
}

/// Who is at the other end of one connection.
#[derive(Debug)]
pub struct Guest {
    shown: Vec<CertificateDer<'static>>,
    rules: watch::Receiver<Rules>,
}

impl Guest {
    /// Looks at what the peer showed, now or when its session began.
    ///
    /// # Errors
    /// See [`Refusal`]; its text may go to the peer.
    pub fn admit(&self, now: SystemTime) -> Result<Peer, Refusal> {
        match &*self.rules.borrow() {
            Rules::Open(_, trust) => trust.admit(&self.shown, now),
            Rules::Awaited | Rules::Shut => Err(Refusal::NoCertificate),
        }
    }

    /// Returns when others are admitted than before, or the same for another reason.
    pub async fn ruled_anew(&mut self) {
        if self.rules.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Returns when the peer is not admitted any more: the connection is to end, or to take no new calls.
    pub async fn refused(&mut self) -> Refusal {
        loop {
            self.rules.mark_unchanged();
            let now = SystemTime::now();
            let peer = match self.admit(now) {
                Ok(peer) => peer,
                Err(refusal) => return refusal,
            };
            tokio::select! {
                changed = self.rules.changed() => if changed.is_err() { std::future::pending().await },
                () = tokio::time::sleep(peer.left(now).min(LOOK_AGAIN)) => {}
            }
        }
    }
}
