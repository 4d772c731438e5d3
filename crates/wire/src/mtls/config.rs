//! TLS configurations of both ends: the cipher suites of QUIC, and their equals for TLS 1.2.

use std::sync::Arc;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion};

use crate::identity::{Credentials, Trust};
use crate::quic::config::{self, TlsConfigError};
use crate::zero_rtt::{CallerSessions, WorkerSessions};

/// Sessions that a worker gives to a caller after a handshake.
const TICKETS_PER_HANDSHAKE: usize = 2;

/// Cryptography with the cipher suites of one version only. A worker recognises the version by the
/// suites that a caller offers.
fn version_provider(version: &SupportedProtocolVersion) -> Arc<CryptoProvider> {
    let mut provider = CryptoProvider::clone(&config::crypto_provider());
    provider.cipher_suites.extend([
        ring::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        ring::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    ]);
    provider
        .cipher_suites
        .retain(|suite| suite.version() == version);
    Arc::new(provider)
}

/// TLS configurations of a worker.
#[derive(Debug, Clone)]
pub(super) struct WorkerTlsConfigs {
    pub(super) tls13: Arc<ServerConfig>,
    /// Configuration without sessions: those of TLS 1.2 can be used repeatedly, and their keys
    /// derive from the first one's.
    pub(super) tls12: Arc<ServerConfig>,
}

impl WorkerTlsConfigs {
    pub(super) fn new(
        credentials: &Credentials,
        trust: &Trust,
        register: Arc<WorkerSessions>,
    ) -> Result<Self, TlsConfigError> {
        let tls13 = tls13_server_config(credentials, trust, register)?;
        let mut tls12 = server_config(credentials, trust, &TLS12)?;
        // rustls stores sessions for TLS 1.2 by default.
        tls12.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self {
            tls13: Arc::new(tls13),
            tls12: Arc::new(tls12),
        })
    }
}

/// Configuration of a server for TLS 1.3, with its sessions in `register`.
pub(crate) fn tls13_server_config(
    credentials: &Credentials,
    trust: &Trust,
    register: Arc<WorkerSessions>,
) -> Result<ServerConfig, TlsConfigError> {
    let mut config = server_config(credentials, trust, &TLS13)?;
    (config.session_storage, config.send_tls13_tickets) = (register, TICKETS_PER_HANDSHAKE);
    Ok(config)
}

/// Configuration of a server for one version, which requires certificates of its callers.
fn server_config(
    credentials: &Credentials,
    trust: &Trust,
    version: &'static SupportedProtocolVersion,
) -> Result<ServerConfig, TlsConfigError> {
    let provider = version_provider(version);
    let peers =
        WebPkiClientVerifier::builder_with_provider(trust.roots(), provider.clone()).build()?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])?
        .with_client_cert_verifier(peers)
        .with_single_cert(credentials.chain.clone(), credentials.private_key())?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Configuration of a caller for one version. Configurations of the same credentials share their
/// sessions.
pub(super) fn caller_config(
    credentials: &Credentials,
    trust: &Trust,
    version: &'static SupportedProtocolVersion,
    sessions: Option<&Arc<CallerSessions>>,
) -> Result<ClientConfig, TlsConfigError> {
    let provider = version_provider(version);
    let peers =
        WebPkiServerVerifier::builder_with_provider(trust.roots(), provider.clone()).build()?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])?
        .with_webpki_verifier(peers)
        .with_client_auth_cert(credentials.chain.clone(), credentials.private_key())?;
    config.resumption = sessions.map_or_else(Resumption::disabled, |sessions| {
        Resumption::store(sessions.clone())
    });
    Ok(config)
}
