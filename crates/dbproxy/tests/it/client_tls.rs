//! The certificate by which the node answers clients that need TLS.

use std::sync::{Arc, LazyLock};

use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio_rustls::TlsAcceptor;

pub(crate) struct DestinationCertificate {
    pub(crate) pem: String,
    pub(crate) acceptor: TlsAcceptor,
}

/// Returns the certificate of `127.0.0.1`, which is its own authority.
pub(crate) fn destination() -> &'static DestinationCertificate {
    static CREATED: LazyLock<DestinationCertificate> = LazyLock::new(|| {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        DestinationCertificate {
            pem: made.cert.pem(),
            acceptor: TlsAcceptor::from(Arc::new(config)),
        }
    });
    &CREATED
}
