//! TLS and QUIC for two peers that know each other's identity, and connect once: workers of a job.
//!
//! No sessions are kept and nothing goes early: a pair of workers shakes hands once in its life. Neither has a name in any
//! DNS, so the name in a certificate follows from the identity ([`name_of`]), and is not chosen.

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

use crate::early::TokenKey;
use crate::identity::{Credentials, Peer, Refusal, Trust};
use crate::quic::config::{ConfigError, provider};

/// What is spoken: the bytes of a way between two workers, and nothing else.
pub const ALPN: &[u8] = b"nearpath-way/1";

/// Who was met is not who was meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stranger {
    /// Its certificate is not good.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It is somebody else's.
    #[error("the peer is {met}, and {meant} was meant")]
    Other {
        /// Who it is.
        met: Box<SpiffeId>,
        /// Who it was to be.
        meant: Box<SpiffeId>,
    },
}

/// What all connections of a worker to its peers have in common. Made once: reading keys takes longer than a message.
#[derive(Debug, Clone)]
pub struct Own {
    trust: Trust,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// Both ends of one worker's connections to one peer.
#[derive(Debug, Clone)]
pub struct Pair {
    own: Own,
    peer: SpiffeId,
}

/// The name that the certificate of a worker bears beside its identity: 32 digits of SHA-256, below `worker.nearpath`.
pub fn name_of(id: &SpiffeId) -> String {
    let mut name = String::from("w");
    for byte in &digest(&SHA256, id.to_string().as_bytes()).as_ref()[..16] {
        let _ = write!(name, "{byte:02x}"); // a String takes everything
    }
    name + ".worker.nearpath"
}

impl Own {
    /// For connections as `credentials`, to peers for whom `trust` speaks.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn new(credentials: &Credentials, trust: Trust) -> Result<Self, ConfigError> {
        let servers = WebPkiServerVerifier::builder_with_provider(trust.roots(), provider()).build()?;
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_webpki_verifier(servers)
            .with_client_auth_cert(credentials.chain.clone(), credentials.private_key())?;
        client.resumption = Resumption::disabled();
        let clients = WebPkiClientVerifier::builder_with_provider(trust.roots(), provider()).build()?;
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(clients)
            .with_single_cert(credentials.chain.clone(), credentials.private_key())?;
        (server.session_storage, server.send_tls13_tickets) = (Arc::new(NoServerSessionStorage {}), 0);
        (client.alpn_protocols, server.alpn_protocols) = (vec![ALPN.to_vec()], vec![ALPN.to_vec()]);
        Ok(Self { trust, client: Arc::new(client), server: Arc::new(server) })
    }

    /// For connections to that one.
    pub fn with(&self, peer: SpiffeId) -> Pair {
        Pair { own: self.clone(), peer }
    }
}

impl Pair {
    /// For a worker that has one peer.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn new(credentials: &Credentials, trust: &Trust, peer: SpiffeId) -> Result<Self, ConfigError> {
        Ok(Own::new(credentials, trust.clone())?.with(peer))
    }

    /// Who is meant.
    pub fn peer(&self) -> &SpiffeId {
        &self.peer
    }

    /// The name to connect to.
    pub fn name(&self) -> String {
        name_of(&self.peer)
    }

    /// The same for TLS.
    pub fn server_name(&self) -> ServerName<'static> {
        ServerName::try_from(self.name()).expect("digits, letters and dots")
    }

    /// For TLS, as the one who connects.
    pub fn client(&self) -> &Arc<ClientConfig> {
        &self.own.client
    }

    /// For TLS, as the one who accepts.
    pub fn server(&self) -> &Arc<ServerConfig> {
        &self.own.server
    }

    /// For QUIC, as the one who connects.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn quic_client(&self) -> Result<quinn_proto::ClientConfig, ConfigError> {
        Ok(quinn_proto::ClientConfig::new(Arc::new(QuicClientConfig::try_from(Arc::clone(&self.own.client))?)))
    }

    /// For QUIC, as the one who accepts. `key`: of the tokens by which addresses are proven.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn quic_server(&self, key: &TokenKey) -> Result<quinn_proto::ServerConfig, ConfigError> {
        let tls = QuicServerConfig::try_from(Arc::clone(&self.own.server))?;
        Ok(quinn_proto::ServerConfig::new(Arc::new(tls), key.for_quic()))
    }

    /// Looks at the certificate of who was met. Chain and proof of the key are rustls's.
    ///
    /// # Errors
    /// See [`Stranger`].
    pub fn check(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> Result<Peer, Stranger> {
        let met = self.own.trust.admit(chain, now)?;
        if met.id == self.peer {
            return Ok(met);
        }
        Err(Stranger::Other { met: Box::new(met.id), meant: Box::new(self.peer.clone()) })
    }
}
