//! Certificates of authorities, as a file holds them: one, or several while a root is replaced.

use std::time::{Duration, SystemTime};

use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// Certificate of an authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootCertificate {
    /// The certificate in DER.
    pub der: CertificateDer<'static>,
    /// Trust domain in its URI `spiffe://TRUST-DOMAIN` (X.509-SVID section 3), which is optional.
    pub trust_domain: Option<String>,
    /// Start of its validity.
    pub not_before: SystemTime,
    /// End of its validity.
    pub not_after: SystemTime,
    public_key: Vec<u8>,
}

/// Reasons why a text holds no certificates of authorities.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRoots {
    /// A block is malformed, or the text has none.
    #[error("missing or malformed PEM block: certificate")]
    MissingBlock,
    /// A certificate is not X.509.
    #[error("certificate {number} is not X.509: {why}")]
    Unreadable {
        /// Number of the certificate in the text, from 1.
        number: usize,
        /// Fault of the certificate.
        why: String,
    },
    /// A certificate may not sign others.
    #[error("certificate {number} is not the certificate of an authority")]
    NoAuthority {
        /// Number of the certificate in the text, from 1.
        number: usize,
    },
}

impl RootCertificate {
    /// Parses all certificates of a PEM text, at least one.
    ///
    /// # Errors
    /// See [`InvalidRoots`].
    pub fn parse_all(pem: &[u8]) -> Result<Vec<Self>, InvalidRoots> {
        let ders = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        let ders = ders.map_err(|_| InvalidRoots::MissingBlock)?;
        if ders.is_empty() {
            return Err(InvalidRoots::MissingBlock);
        }
        ders.into_iter()
            .zip(1..)
            .map(|(der, number)| Self::parse(der, number))
            .collect()
    }

    fn parse(der: CertificateDer<'static>, number: usize) -> Result<Self, InvalidRoots> {
        let parsed = X509Certificate::from_der(&der);
        let (_, parsed) = parsed.map_err(|error| InvalidRoots::Unreadable {
            number,
            why: error.to_string(),
        })?;
        if !parsed.is_ca() {
            return Err(InvalidRoots::NoAuthority { number });
        }
        let (trust_domain, validity) = (trust_domain(&parsed), parsed.validity());
        let (not_before, not_after) = (
            system_time(validity.not_before.timestamp()),
            system_time(validity.not_after.timestamp()),
        );
        let public_key = parsed.public_key().subject_public_key.data.to_vec();
        Ok(Self {
            der,
            trust_domain,
            not_before,
            not_after,
            public_key,
        })
    }

    /// Returns true if this is the public key of the certificate. `raw` are the bits of the key
    /// without its algorithm.
    pub fn has_public_key(&self, raw: &[u8]) -> bool {
        self.public_key == raw
    }

    /// SHA-256 of the certificate in hexadecimal digits.
    pub fn fingerprint(&self) -> String {
        let digest = digest(&SHA256, &self.der);
        digest
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

/// Trust domain in a URI without a path.
fn trust_domain(parsed: &X509Certificate<'_>) -> Option<String> {
    let names = parsed.subject_alternative_name().ok().flatten()?;
    let uri = names
        .value
        .general_names
        .iter()
        .find_map(|name| match name {
            GeneralName::URI(uri) => uri.strip_prefix("spiffe://"),
            _ => None,
        })?;
    (!uri.contains('/')).then(|| uri.to_owned())
}

/// Time of seconds since 1970; earlier ones are 1970.
pub(crate) fn system_time(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
