//! TLS and QUIC for two peers that know each other's identity, and connect once: workers of a job.
//!
//! No sessions are kept and nothing goes early: a pair of workers shakes hands once in its life. Neither has a name in any
//! DNS, so the name in a certificate follows from the identity ([`worker_dns_name`]), and is not chosen.

use std::fmt::Write;
use std::sync::Arc;
use std::time::SystemTime;

use nearpath_types::SpiffeId;
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use ring::digest::{SHA256, digest};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};

use crate::identity::{Credentials, PeerIdentity, PeerRefusal, Trust};
use crate::quic::config::{TlsConfigError, crypto_provider};
use crate::zero_rtt::TokenKey;

/// What is spoken: the bytes of a way between two workers, and nothing else.
pub const ALPN: &[u8] = b"nearpath-way/1";

/// Who was met is not who was meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityMismatch {
    /// Its certificate is not good.
    #[error(transparent)]
    NotAdmitted(#[from] PeerRefusal),
    /// It is somebody else's.
    #[error("the peer is {met}, and {meant} was meant")]
    WrongPeer {
        /// Who it is.
        met: Box<SpiffeId>,
        /// Who it was to be.
        meant: Box<SpiffeId>,
    },
}

/// What all connections of a worker to its peers have in common. Made once: reading keys takes longer than a message.
#[derive(Debug, Clone)]
pub struct P2pTlsConfig {
    trust: Trust,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// Both ends of one worker's connections to one peer.
#[derive(Debug, Clone)]
pub struct PeerTlsConfig {
    base: P2pTlsConfig,
    peer: SpiffeId,
}

/// The name that the certificate of a worker bears beside its identity: 32 digits of SHA-256, below `worker.nearpath`.
pub fn worker_dns_name(id: &SpiffeId) -> String {
    let mut name = String::from("w");
    for byte in &digest(&SHA256, id.to_string().as_bytes()).as_ref()[..16] {
        let _ = write!(name, "{byte:02x}"); // a String takes everything
    }
    name + ".worker.nearpath"
}

impl P2pTlsConfig {
    /// For connections as `credentials`, to peers for whom `trust` speaks.
    ///
    /// # Errors
    /// See [`TlsConfigError`].
    pub fn new(credentials: &Credentials, trust: Trust) -> Result<Self, TlsConfigError> {
        let servers = WebPkiServerVerifier::builder_with_provider(trust.roots(), crypto_provider())
            .build()?;
        let mut client = ClientConfig::builder_with_provider(crypto_provider())
            .with_protocol_versions(&[&TLS13])?
            .with_webpki_verifier(servers)
            .with_client_auth_cert(credentials.chain.clone(), credentials.private_key())?;
        client.resumption = Resumption::disabled();
        let clients = WebPkiClientVerifier::builder_with_provider(trust.roots(), crypto_provider())
            .build()?;
        let mut server = ServerConfig::builder_with_provider(crypto_provider())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(clients)
            .with_single_cert(credentials.chain.clone(), credentials.private_key())?;
        (server.session_storage, server.send_tls13_tickets) =
            (Arc::new(NoServerSessionStorage {}), 0);
        (client.alpn_protocols, server.alpn_protocols) = (vec![ALPN.to_vec()], vec![ALPN.to_vec()]);
        Ok(Self {
            trust,
            client: Arc::new(client),
            server: Arc::new(server),
        })
    }

    /// For connections to that one.
    pub fn for_peer(&self, peer: SpiffeId) -> PeerTlsConfig {
        PeerTlsConfig {
            base: self.clone(),
            peer,
        }
    }
}

impl PeerTlsConfig {
    /// For a worker that has one peer.
    ///
    /// # Errors
    /// See [`TlsConfigError`].
    pub fn new(
        credentials: &Credentials,
        trust: &Trust,
        peer: SpiffeId,
    ) -> Result<Self, TlsConfigError> {
        Ok(P2pTlsConfig::new(credentials, trust.clone())?.for_peer(peer))
    }

    /// Who is meant.
    pub fn peer(&self) -> &SpiffeId {
        &self.peer
    }

    /// The name to connect to.
    pub fn dns_name(&self) -> String {
        worker_dns_name(&self.peer)
    }

    /// The same for TLS.
    pub fn server_name(&self) -> ServerName<'static> {
        ServerName::try_from(self.dns_name()).expect("digits, letters and dots")
    }

    /// For TLS, as the one who connects.
    pub fn client_config(&self) -> &Arc<ClientConfig> {
        &self.base.client
    }

    /// For TLS, as the one who accepts.
    pub fn server_config(&self) -> &Arc<ServerConfig> {
        &self.base.server
    }

    /// For QUIC, as the one who connects.
    ///
    /// # Errors
    /// See [`TlsConfigError`].
    pub fn quic_client_config(&self) -> Result<quinn_proto::ClientConfig, TlsConfigError> {
        Ok(quinn_proto::ClientConfig::new(Arc::new(
            QuicClientConfig::try_from(Arc::clone(&self.base.client))?,
        )))
    }

    /// For QUIC, as the one who accepts. `key`: of the tokens by which addresses are proven.
    ///
    /// # Errors
    /// See [`TlsConfigError`].
    pub fn quic_server_config(
        &self,
        key: &TokenKey,
    ) -> Result<quinn_proto::ServerConfig, TlsConfigError> {
        let tls = QuicServerConfig::try_from(Arc::clone(&self.base.server))?;
        Ok(quinn_proto::ServerConfig::new(
            Arc::new(tls),
            key.handshake_key(),
        ))
    }

    /// Looks at the certificate of who was met. Chain and proof of the key are rustls's.
    ///
    /// # Errors
    /// See [`IdentityMismatch`].
    pub fn verify_peer(
        &self,
        chain: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<PeerIdentity, IdentityMismatch> {
        let met = self.base.trust.admit_peer(chain, now)?;
        if met.id == self.peer {
            return Ok(met);
        }
        Err(IdentityMismatch::WrongPeer {
            met: Box::new(met.id),
            meant: Box::new(self.peer.clone()),
        })
    }
}
