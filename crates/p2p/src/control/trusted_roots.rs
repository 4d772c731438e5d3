//! Whose certificates are believed when a rendezvous shows one.

use std::io;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// The authorities of the system, or with `pem` those and nobody else (`SSL_CERT_FILE` names others for the system's).
///
/// # Errors
/// When there is no certificate in it, or the system has none.
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
        None => {
            drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs))
        }
    }
    if roots.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "there is no authority whose certificates could be believed",
        ));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
