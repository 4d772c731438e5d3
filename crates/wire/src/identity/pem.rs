//! Identities as PEM text (RFC 7468), for workers that are started on other machines.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use super::Credentials;
use super::root::system_time;
use super::trust::{self, PeerRefusal};

/// Reasons why a text holds no identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPem {
    /// A block of this kind is missing or malformed.
    #[error("missing or malformed PEM block: {0}")]
    MissingBlock(&'static str),
    /// The certificate is not one of nearpath's.
    #[error(transparent)]
    Certificate(#[from] PeerRefusal),
}

/// Encodes one PEM block.
pub fn encode_pem(tag: &'static str, der: &[u8]) -> String {
    // RFC 7468 allows CRLF; LF keeps the text the same on every platform.
    let lines = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(tag, der), lines)
}

/// Returns the first certificate of a text.
///
/// # Errors
/// See [`InvalidPem`].
pub fn parse_authority(text: &str) -> Result<CertificateDer<'static>, InvalidPem> {
    CertificateDer::from_pem_slice(text.as_bytes())
        .map_err(|_| InvalidPem::MissingBlock("certificate"))
}

impl Credentials {
    /// Encodes the certificate with its issuers, and the key. Access to the key gives access to the
    /// identity.
    pub fn to_pem(&self) -> (String, String) {
        let chain = self
            .chain
            .iter()
            .map(|certificate| encode_pem("CERTIFICATE", certificate))
            .collect();
        (chain, encode_pem("PRIVATE KEY", &self.key))
    }

    /// Decodes both texts. A certificate and a key that do not match fail at their first use.
    ///
    /// # Errors
    /// See [`InvalidPem`].
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, InvalidPem> {
        let missing = |what| move |_| InvalidPem::MissingBlock(what);
        let chain = CertificateDer::pem_slice_iter(certificate.as_bytes());
        let chain = chain
            .collect::<Result<Vec<_>, _>>()
            .map_err(missing("certificate"))?;
        let key =
            PrivatePkcs8KeyDer::from_pem_slice(key.as_bytes()).map_err(missing("private key"))?;
        // The identity is read from the certificate, so that both cannot contradict each other.
        let own = trust::parse_certificate(
            chain
                .first()
                .ok_or(InvalidPem::MissingBlock("certificate"))?,
        )?;
        let not_after = system_time(own.not_after);
        Ok(Self {
            id: own.id,
            name: own.name,
            chain,
            key: key.secret_pkcs8_der().to_vec(),
            not_after,
        })
    }
}
