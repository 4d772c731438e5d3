//! TLS with a certificate of the callee only, the common form: with the certificates and ciphers of
//! QUIC, so that only the transport differs. With certificates on both sides the product's own
//! configuration is used ([`nearpath_wire::mutual`]).

use std::sync::Arc;

use nearpath_wire::identity::Credentials;
use nearpath_wire::zero_rtt::Provision;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};

use super::{BenchError, RemoteTransport};

/// A caller's configurations, without sessions.
#[derive(Clone)]
pub(crate) struct CallerTlsConfigs {
    tls12: Arc<ClientConfig>,
    tls13: Arc<ClientConfig>,
}

impl CallerTlsConfigs {
    pub(super) fn new(authority: &CertificateDer<'static>) -> Result<Self, BenchError> {
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone())?;
        let config =
            |version: &'static SupportedProtocolVersion| -> Result<Arc<ClientConfig>, BenchError> {
                let builder = ClientConfig::builder_with_provider(crypto_provider())
                    .with_protocol_versions(&[version])?;
                let mut config = builder
                    .with_root_certificates(roots.clone())
                    .with_no_client_auth();
                // Every connection of these variants is a full handshake.
                config.resumption = Resumption::disabled();
                Ok(Arc::new(config))
            };
        Ok(Self {
            tls12: config(&TLS12)?,
            tls13: config(&TLS13)?,
        })
    }

    /// Returns the configuration of a transport; `None` for others.
    pub(super) fn for_transport(&self, transport: RemoteTransport) -> Option<&Arc<ClientConfig>> {
        match transport {
            RemoteTransport::Tls12Server => Some(&self.tls12),
            RemoteTransport::Tls13Server => Some(&self.tls13),
            _ => None,
        }
    }
}

/// Returns the callee's configuration.
pub(super) fn callee_config(provision: &Provision) -> Result<Arc<ServerConfig>, BenchError> {
    let builder = ServerConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&TLS12, &TLS13])?;
    let credentials = &provision.credentials;
    let config = builder
        .with_no_client_auth()
        .with_single_cert(credentials.chain.clone(), private_key(credentials))?;
    Ok(Arc::new(config))
}

/// Returns a provider with AES-128 first, as in QUIC here.
fn crypto_provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    // One suite for each version: a negotiated difference would be measured as the transport's.
    provider.cipher_suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    ];
    Arc::new(provider)
}

fn private_key(credentials: &Credentials) -> PrivateKeyDer<'static> {
    PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(credentials.key.clone()))
}
