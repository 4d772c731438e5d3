//! Credentials: a certificate with its private key.

use std::fmt;
use std::time::SystemTime;

use nearpath_types::SpiffeId;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::{
    CertificateDer, CertificateSigningRequestDer, PrivateKeyDer, PrivatePkcs8KeyDer,
};

/// A certificate with its key, for one incarnation of a worker or caller. Never written to disk.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// SPIFFE ID in the certificate.
    pub id: SpiffeId,
    /// TLS server name, unique for each incarnation, so that a session of one is never offered to
    /// another.
    pub name: String,
    /// The certificate in DER, followed by its issuers.
    pub chain: Vec<CertificateDer<'static>>,
    /// The private key, PKCS #8 in DER.
    pub key: Vec<u8>,
    /// End of the certificate's validity.
    pub not_after: SystemTime,
}

impl Credentials {
    pub(crate) fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.clone()))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Credentials({} as {}, until {:?})",
            self.id, self.name, self.not_after
        )
    }
}

/// A certificate as the authority returns it.
#[derive(Debug, Clone)]
pub struct IssuedCertificate {
    /// Certificate in DER.
    pub certificate: CertificateDer<'static>,
    /// End of its validity.
    pub not_after: SystemTime,
}

/// A fresh key and the request that proves its possession (PKCS #10). The key stays in this
/// process.
#[derive(Debug)]
pub struct CertificateRequest {
    key: KeyPair,
    csr: CertificateSigningRequestDer<'static>,
}

/// The request failed: the system's random numbers or the encoder.
#[derive(Debug, thiserror::Error)]
#[error("cannot create a certificate request: {0}")]
pub struct CertificateRequestError(#[from] rcgen::Error);

impl CertificateRequest {
    /// Creates a key (ECDSA over P-256: rustls signs fastest with it) and a request for it.
    ///
    /// # Errors
    /// See [`CertificateRequestError`].
    pub fn new() -> Result<Self, CertificateRequestError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let csr = CertificateParams::default()
            .serialize_request(&key)?
            .der()
            .clone();
        Ok(Self { key, csr })
    }

    /// Certificate signing request for the authority.
    pub fn csr(&self) -> &CertificateSigningRequestDer<'static> {
        &self.csr
    }

    /// Combines the key with the certificate that was issued for it.
    pub fn into_credentials(
        self,
        id: SpiffeId,
        name: String,
        issued: IssuedCertificate,
    ) -> Credentials {
        let IssuedCertificate {
            certificate,
            not_after,
        } = issued;
        Credentials {
            id,
            name,
            chain: vec![certificate],
            key: self.key.serialize_der(),
            not_after,
        }
    }
}
