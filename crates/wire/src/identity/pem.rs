//! Identities as text (RFC 7468), for who hands one to a worker that it starts elsewhere.

use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use super::Credentials;
use super::trust::{self, PeerRefusal};

/// Text that holds no identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPem {
    /// No block of that kind, or one that is broken.
    #[error("there is no {0} in it, as PEM")]
    MissingBlock(&'static str),
    /// A certificate that is none of ours.
    #[error(transparent)]
    Certificate(#[from] PeerRefusal),
}

/// One block of text.
pub fn encode_pem(tag: &'static str, der: &[u8]) -> String {
    let lines = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(tag, der), lines)
}

/// The first certificate of a text.
///
/// # Errors
/// See [`InvalidPem`].
pub fn parse_authority(text: &str) -> Result<CertificateDer<'static>, InvalidPem> {
    CertificateDer::from_pem_slice(text.as_bytes())
        .map_err(|_| InvalidPem::MissingBlock("certificate"))
}

impl Credentials {
    /// The certificate with its issuers, and the key. Whoever reads the key is that party.
    pub fn to_pem(&self) -> (String, String) {
        let chain = self
            .chain
            .iter()
            .map(|certificate| encode_pem("CERTIFICATE", certificate))
            .collect();
        (chain, encode_pem("PRIVATE KEY", &self.key))
    }

    /// Reads the same again. Whether the two belong together shows when they are used.
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
        let own = trust::parse_certificate(
            chain
                .first()
                .ok_or(InvalidPem::MissingBlock("certificate"))?,
        )?;
        let not_after =
            SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(own.not_after).unwrap_or(0));
        Ok(Self {
            id: own.id,
            name: own.name,
            chain,
            key: key.secret_pkcs8_der().to_vec(),
            not_after,
        })
    }
}
