//! Trusted authorities for the certificate of a rendezvous.

use std::io;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Returns TLS settings that trust the system's authorities, or only those of `pem`.
///
/// `SSL_CERT_FILE` replaces the system's authorities.
///
/// # Errors
/// Fails when there is no certificate at all.
pub fn client_config(pem: Option<&[u8]>) -> io::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    match pem {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                roots
                    .add(certificate.map_err(io::Error::other)?)
                    .map_err(io::Error::other)?;
            }
        }
        // Unparsable certificates are skipped: one broken entry must not disable the system's
        // store.
        None => {
            let (_added, _skipped) =
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "no trusted certificate authority: install ca-certificates, or set SSL_CERT_FILE",
        ));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    // WebSocket starts with HTTP/1.1; with `h2` a server would answer in frames (RFC 8441 is not
    // implemented).
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
