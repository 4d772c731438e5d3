//! The controller's certificate authority: it says who holds a key, for a short time.
//!
//! What is in a certificate comes from here, never from the request: of that only the public key is taken, after its signature
//! has proved that the private one is held.

use std::time::{Duration, SystemTime};

use nearpath_types::SpiffeId;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};

/// How far a peer's clock may be behind.
const SKEW: Duration = Duration::from_secs(60);

/// See the module's text.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    trust_domain: String,
}

/// A certificate.
#[derive(Debug, Clone)]
pub struct Issued {
    /// In DER.
    pub certificate: CertificateDer<'static>,
    /// End of its life.
    pub not_after: SystemTime,
}

/// Why nothing was issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The request is not PKCS #10, or its signature is not by its own key.
    #[error("the certificate request is not valid: {0}")]
    Request(rcgen::Error),
    /// This authority does not speak for that trust domain.
    #[error("this authority speaks for trust domain {own}, not for {asked}")]
    TrustDomain {
        /// The authority's.
        own: String,
        /// The one asked for.
        asked: String,
    },
    /// The certificate could not be made.
    #[error("the certificate could not be made: {0}")]
    Certificate(#[from] rcgen::Error),
}

impl Authority {
    /// A new one, with a key that nobody else has.
    ///
    /// # Errors
    /// When the system's random numbers fail.
    pub fn new(trust_domain: &str, now: SystemTime, lifetime: Duration) -> Result<Self, IssueError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&format!("nearpath {trust_domain}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) = ((now - SKEW).into(), (now + lifetime).into());
        let certificate = params.self_signed(&key)?.der().clone();
        Ok(Self { issuer: Issuer::new(params, key), certificate, trust_domain: trust_domain.to_owned() })
    }

    /// What peers check against.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Signs for `id`, called `name`, from now on for `lifetime`.
    ///
    /// # Errors
    /// See [`IssueError`].
    pub fn issue(
        &self,
        csr: &CertificateSigningRequestDer<'_>,
        id: &SpiffeId,
        name: &str,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<Issued, IssueError> {
        if id.trust_domain != self.trust_domain {
            let (own, asked) = (self.trust_domain.clone(), id.trust_domain.clone());
            return Err(IssueError::TrustDomain { own, asked });
        }
        let mut request = CertificateSigningRequestParams::from_der(csr).map_err(IssueError::Request)?;
        let not_after = now + lifetime;
        request.params = leaf(id, name)?;
        (request.params.not_before, request.params.not_after) = ((now - SKEW).into(), not_after.into());
        let certificate = request.signed_by(&self.issuer)?.der().clone();
        Ok(Issued { certificate, not_after })
    }
}

/// X.509-SVID, section 4: one URI, no authority of its own, both ends of a connection.
fn leaf(id: &SpiffeId, name: &str) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new([name.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names.push(SanType::URI(id.to_string().try_into()?));
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}
