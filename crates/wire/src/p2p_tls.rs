//! TLS and QUIC for two workers of a job, which know each other's identity and connect once.
//!
//! No sessions are kept and no early data is sent: a pair of workers performs one handshake. The
//! workers have no DNS names, so the name in a certificate is derived from the identity
//! ([`worker_dns_name`]).

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

/// ALPN protocol of the byte stream between two workers.
pub const ALPN: &[u8] = b"nearpath-way/1";

/// Reasons why the peer is not the expected one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityMismatch {
    /// The certificate is not valid.
    #[error(transparent)]
    NotAdmitted(#[from] PeerRefusal),
    /// The certificate belongs to another worker.
    #[error("unexpected peer {actual}: expected {expected}")]
    WrongPeer {
        /// Identity in the peer's certificate.
        actual: Box<SpiffeId>,
        /// Expected identity.
        expected: Box<SpiffeId>,
    },
}

/// TLS configuration that all connections of a worker share. Created once, because parsing keys
/// takes longer than a message.
#[derive(Debug, Clone)]
pub struct P2pTlsConfig {
    trust: Trust,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// TLS configuration of a worker for one peer, for both directions.
#[derive(Debug, Clone)]
pub struct PeerTlsConfig {
    base: P2pTlsConfig,
    peer: SpiffeId,
}

/// DNS name in a worker's certificate, derived from its identity: 32 digits of SHA-256, below
/// `worker.nearpath`.
pub fn worker_dns_name(id: &SpiffeId) -> String {
    let mut name = String::from("w");
    // 16 of 32 bytes: collisions are infeasible, and a DNS label holds 63 characters at most.
    for byte in &digest(&SHA256, id.to_string().as_bytes()).as_ref()[..16] {
        let _ = write!(name, "{byte:02x}"); // writing to a String cannot fail
    }
    name + ".worker.nearpath"
}

impl P2pTlsConfig {
    /// Creates the configuration for connections with `credentials` to peers that `trust` admits.
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
        // A pair connects once, so a stored session would only be a secret to lose.
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

    /// Returns the configuration for connections to `peer`.
    pub fn for_peer(&self, peer: SpiffeId) -> PeerTlsConfig {
        PeerTlsConfig {
            base: self.clone(),
            peer,
        }
    }
}

impl PeerTlsConfig {
    /// Creates the configuration for a worker with a single peer.
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

    /// Expected identity of the peer.
    pub fn peer(&self) -> &SpiffeId {
        &self.peer
    }

    /// DNS name of the peer.
    pub fn dns_name(&self) -> String {
        worker_dns_name(&self.peer)
    }

    /// DNS name of the peer, for rustls.
    pub fn server_name(&self) -> ServerName<'static> {
        // The name is built from hexadecimal digits, so it is always valid.
        ServerName::try_from(self.dns_name()).expect("digits, letters and dots")
    }

    /// TLS configuration of the connecting side.
    pub fn client_config(&self) -> &Arc<ClientConfig> {
        &self.base.client
    }

    /// TLS configuration of the accepting side.
    pub fn server_config(&self) -> &Arc<ServerConfig> {
        &self.base.server
    }

    /// QUIC configuration of the connecting side.
    ///
    /// # Errors
    /// See [`TlsConfigError`].
    pub fn quic_client_config(&self) -> Result<quinn_proto::ClientConfig, TlsConfigError> {
        Ok(quinn_proto::ClientConfig::new(Arc::new(
            QuicClientConfig::try_from(Arc::clone(&self.base.client))?,
        )))
    }

    /// QUIC configuration of the accepting side. `key` protects the tokens that validate addresses.
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

    /// Checks the peer's certificate. rustls has verified chain and proof of the key.
    ///
    /// # Errors
    /// See [`IdentityMismatch`].
    pub fn verify_peer(
        &self,
        chain: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<PeerIdentity, IdentityMismatch> {
        // The trust admits every worker of the job; only one of them is the expected peer.
        let identity = self.base.trust.admit_peer(chain, now)?;
        if identity.id == self.peer {
            return Ok(identity);
        }
        Err(IdentityMismatch::WrongPeer {
            actual: Box::new(identity.id),
            expected: Box::new(self.peer.clone()),
        })
    }
}
