//! Connections to the gateway: plain ones, and TLS where its URL says `https`.
//!
//! Trusted is what the system trusts, or what `SSL_CERT_FILE` and `SSL_CERT_DIR` name instead, as with OpenSSL and Go; besides, what
//! the libraries of other languages are told to trust, so that all calls of a process trust the same. The files are read once, with the
//! first `https` gateway.

use std::error::Error;
use std::io;
use std::sync::{Arc, LazyLock};

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{CertificateError, ClientConfig, RootCertStore};

/// Variables that name a file of certificates to trust besides: of Node, and of `requests`.
const EXTRA_CA_VARIABLES: [&str; 2] = ["NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"];

static TLS_CONFIG: LazyLock<Arc<ClientConfig>> =
    LazyLock::new(|| Arc::new(client_config(trusted_roots())));
static NO_ROOTS_CONFIG: LazyLock<Arc<ClientConfig>> =
    LazyLock::new(|| Arc::new(client_config(RootCertStore::empty())));

/// Connector of the HTTP client.
pub(crate) type GatewayConnector = HttpsConnector<HttpConnector>;

/// Creates a connector for a gateway URL.
pub(crate) fn gateway_connector(gateway: &str) -> GatewayConnector {
    let secure = gateway
        .get(..6)
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
    let mut plain = HttpConnector::new();
    plain.enforce_http(false);
    plain.set_nodelay(true); // pieces of a body are not held back
    let config = if secure {
        &*TLS_CONFIG
    } else {
        &*NO_ROOTS_CONFIG
    };
    HttpsConnectorBuilder::new()
        .with_tls_config(config.as_ref().clone())
        .https_or_http()
        .enable_http1()
        .wrap_connector(plain)
}

fn client_config(roots: RootCertStore) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    versions
        .expect("ring has suites for TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

fn trusted_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for file in EXTRA_CA_VARIABLES.iter().filter_map(std::env::var_os) {
        let certificates = CertificateDer::pem_file_iter(&file)
            .into_iter()
            .flatten()
            .flatten();
        roots.add_parsable_certificates(certificates);
    }
    roots
}

/// Why a gateway was not connected to, and what to do about it.
pub(crate) fn explain_failure(cause: &(dyn Error + 'static)) -> String {
    match tls_cause(cause) {
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "its certificate is of an authority that is not trusted here; SSL_CERT_FILE names a file with those that are"
                .into()
        }
        // What OpenSSL and Go let pass: what `openssl req -x509` makes, unless told otherwise.
        Some(error @ rustls::Error::InvalidCertificate(_)) if error.to_string().contains("CaUsedAsEndEntity") => {
            "its certificate is an authority's own: give it one with basicConstraints CA:FALSE".into()
        }
        Some(error @ rustls::Error::InvalidMessage(_)) => format!("{error}: is there TLS at that port?"),
        _ => cause.to_string(),
    }
}

/// Finds the TLS error inside an [`io::Error`], which hides it from [`Error::source`].
fn tls_cause<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let wrapped = |error: &'a io::Error| tls_cause(error.get_ref()?);
    cause
        .downcast_ref()
        .or_else(|| cause.downcast_ref::<io::Error>().and_then(wrapped))
}
