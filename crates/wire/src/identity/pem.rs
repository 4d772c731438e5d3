//! Identities as text (RFC 7468), for who hands one to a worker that it starts elsewhere.

use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use super::trust::{self, Refusal};
use super::{Credentials, authority::Authority};

/// Text that holds no identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPem {
    /// No block of that kind, or one that is broken.
    #[error("there is no {0} in it, as PEM")]
    Form(&'static str),
    /// A certificate that is none of ours.
    #[error(transparent)]
    Certificate(#[from] Refusal),
}

/// One block of text.
pub fn to_pem(tag: &'static str, der: &[u8]) -> String {
    let lines = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(tag, der), lines)
}

/// The first certificate of a text.
///
/// # Errors
/// See [`BadPem`].
pub fn authority_of(text: &str) -> Result<CertificateDer<'static>, BadPem> {
    CertificateDer::from_pem_slice(text.as_bytes()).map_err(|_| BadPem::Form("certificate"))
}

impl Authority {
    /// What peers check against.
    pub fn to_pem(&self) -> String {
        to_pem("CERTIFICATE", self.certificate())
    }
}

impl Credentials {
    /// The certificate with its issuers, and the key. Whoever reads the key is that party.
    pub fn to_pem(&self) -> (String, String) {
        let chain = self.chain.iter().map(|certificate| to_pem("CERTIFICATE", certificate)).collect();
        (chain, to_pem("PRIVATE KEY", &self.key))
    }

    /// Reads the same again. Whether the two belong together shows when they are used.
    ///
    /// # Errors
    /// See [`BadPem`].
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, BadPem> {
        let form = |what| move |_| BadPem::Form(what);
        let chain = CertificateDer::pem_slice_iter(certificate.as_bytes());
        let chain = chain.collect::<Result<Vec<_>, _>>().map_err(form("certificate"))?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(key.as_bytes()).map_err(form("private key"))?;
        let own = trust::read(chain.first().ok_or(BadPem::Form("certificate"))?)?;
        let not_after = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(own.not_after).unwrap_or(0));
        Ok(Self { id: own.id, name: own.name, chain, key: key.secret_pkcs8_der().to_vec(), not_after })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Request;
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
        let authority = Authority::new("sort", now, hour).unwrap();
        assert_eq!(authority_of(&authority.to_pem()).unwrap(), *authority.certificate());
        let id = "spiffe://sort/ns/job/fn/map/instance/3".parse().unwrap();
        let request = Request::new().unwrap();
        let issued = authority.issue(request.csr(), &id, "map-3", now, hour).unwrap();
        let credentials = request.complete(id, "map-3".to_owned(), issued);
        let (certificate, key) = credentials.to_pem();
        let read = Credentials::from_pem(&certificate, &key).unwrap();
        assert_eq!((&read.id, &read.name, &read.key), (&credentials.id, &credentials.name, &credentials.key));
        assert_eq!(Credentials::from_pem(&key, &certificate), Err(BadPem::Form("private key")));
        assert_eq!(Credentials::from_pem("", &key), Err(BadPem::Form("certificate")));
        let nobody = Credentials::from_pem(&authority.to_pem(), &key);
        assert!(matches!(nobody, Err(BadPem::Certificate(_))), "an authority is no party: {nobody:?}");
    }
}
