//! What a party shows: its certificate and key.

use std::fmt;
use std::time::SystemTime;

use nearpath_types::SpiffeId;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::{
    CertificateDer, CertificateSigningRequestDer, PrivateKeyDer, PrivatePkcs8KeyDer,
};

/// A certificate with its key, for one incarnation of one party. Never written to disk.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Who it says this is.
    pub id: SpiffeId,
    /// The name under which it is called (TLS server name): unique for each incarnation, so that no session of one can be
    /// offered to another.
    pub name: String,
    /// The certificate, in DER, issuers after it.
    pub chain: Vec<CertificateDer<'static>>,
    /// The private key, PKCS #8 in DER.
    pub key: Vec<u8>,
    /// End of its life.
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
    /// The certificate, in DER.
    pub certificate: CertificateDer<'static>,
    /// End of its validity.
    pub not_after: SystemTime,
}

/// A fresh key, and the request that proves its possession (PKCS #10). The key stays where it was made.
#[derive(Debug)]
pub struct CertificateRequest {
    key: KeyPair,
    csr: CertificateSigningRequestDer<'static>,
}

/// Why there is no request: the system's random numbers, or the encoder, failed.
#[derive(Debug, thiserror::Error)]
#[error("no key could be made: {0}")]
pub struct CertificateRequestError(#[from] rcgen::Error);

impl CertificateRequest {
    /// Makes a key (ECDSA over P-256: rustls signs fastest with it) and a request for it.
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

    /// What the authority gets to see.
    pub fn csr(&self) -> &CertificateSigningRequestDer<'static> {
        &self.csr
    }

    /// Joins the key with the certificate that was issued for it.
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
