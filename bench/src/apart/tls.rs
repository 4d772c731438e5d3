//! TLS over TCP as QUIC has it: the same certificates and ciphers, so that the transport is the difference.

use std::sync::Arc;

use nearpath_wire::early::Provision;
use nearpath_wire::identity::Credentials;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};

use super::{Error, Way};

/// A caller's configurations.
#[derive(Clone)]
pub(crate) struct Callers {
    full: [Arc<ClientConfig>; 4],
    resumed: Arc<ClientConfig>,
}

impl Callers {
    pub(super) fn new(credentials: &Credentials, authority: &CertificateDer<'static>) -> Result<Self, Error> {
        let roots = roots(std::slice::from_ref(authority))?;
        let config = |version, shows: bool, resumption| -> Result<Arc<ClientConfig>, Error> {
            let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[version])?;
            let builder = builder.with_root_certificates(roots.clone());
            let mut config = match shows {
                true => builder.with_client_auth_cert(credentials.chain.clone(), key(credentials))?,
                false => builder.with_no_client_auth(),
            };
            config.resumption = resumption;
            Ok(Arc::new(config))
        };
        let full = |version: &'static SupportedProtocolVersion, shows| config(version, shows, Resumption::disabled());
        let full = [full(&TLS12, true)?, full(&TLS13, true)?, full(&TLS12, false)?, full(&TLS13, false)?];
        Ok(Self { full, resumed: config(&TLS13, true, Resumption::default())? })
    }

    /// Nothing where there is no TLS over TCP.
    pub(super) fn of(&self, way: Way) -> Option<&Arc<ClientConfig>> {
        Some(match way {
            Way::Tls12 => &self.full[0],
            Way::Tls13 => &self.full[1],
            Way::Tls12Server => &self.full[2],
            Way::Tls13Server => &self.full[3],
            Way::Tls13Resumed => &self.resumed,
            _ => return None,
        })
    }
}

/// The callee's configuration; `mutual`: callers have to show a certificate.
pub(super) fn callee(provision: &Provision, mutual: bool) -> Result<Arc<ServerConfig>, Error> {
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS12, &TLS13])?;
    let builder = match mutual {
        true => {
            let roots = Arc::new(roots(&provision.authorities)?);
            builder.with_client_cert_verifier(WebPkiClientVerifier::builder_with_provider(roots, provider()).build()?)
        }
        false => builder.with_no_client_auth(),
    };
    let credentials = &provision.credentials;
    Ok(Arc::new(builder.with_single_cert(credentials.chain.clone(), key(credentials))?))
}

/// AES-128 first, as QUIC has it here.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    provider.cipher_suites =
        vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256, ring::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256];
    Arc::new(provider)
}

fn roots(authorities: &[CertificateDer<'static>]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone())?;
    }
    Ok(roots)
}

fn key(credentials: &Credentials) -> PrivateKeyDer<'static> {
    PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(credentials.key.clone()))
}
