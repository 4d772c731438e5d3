//! A certificate authority: binds a public key to an identity for a short time.
//!
//! Names and usages in a certificate come from the authority, never from the request. The request
//! contributes only its public key, once its signature has proved possession of the private one.

use std::time::{Duration, SystemTime};

use nearpath_types::SpiffeId;
use nearpath_wire::identity::{IssuedCertificate, encode_pem};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};

/// Tolerated lag of a peer's clock: certificates are valid from this long before they were signed.
pub(crate) const CLOCK_SKEW_GRACE: Duration = Duration::from_secs(60);

/// The key and certificate of one trust domain.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    trust_domain: String,
}

/// A certificate could not be issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The request is not PKCS #10, or its own key did not sign it.
    #[error("invalid certificate request: {0}")]
    Request(rcgen::Error),
    /// The identity belongs to a trust domain of another authority.
    #[error("this authority signs for trust domain {own}, not for {requested}")]
    TrustDomain {
        /// The authority's trust domain.
        own: String,
        /// The trust domain in the requested identity.
        requested: String,
    },
    /// Encoding or signing failed.
    #[error("cannot sign the certificate: {0}")]
    Certificate(#[from] rcgen::Error),
}

impl Authority {
    /// Creates an authority with a fresh key.
    ///
    /// # Errors
    /// When the system's random number generator fails.
    pub fn new(
        trust_domain: &str,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<Self, IssueError> {
        // P-256: every TLS library in instances verifies it, and signing is fast.
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&format!("nearpath {trust_domain}"));
        // It signs leaf certificates only: a path length of 0 rules out authorities below this one.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        // X.509-SVID section 3: the identity of an authority is its trust domain.
        let uri = format!("spiffe://{trust_domain}").try_into()?;
        params.subject_alt_names.push(SanType::URI(uri));
        (params.not_before, params.not_after) =
            ((now - CLOCK_SKEW_GRACE).into(), (now + lifetime).into());
        let certificate = params.self_signed(&key)?.der().clone();
        Ok(Self {
            issuer: Issuer::new(params, key),
            certificate,
            trust_domain: trust_domain.to_owned(),
        })
    }

    /// Restores an authority from its certificate and key, which must belong together.
    ///
    /// # Errors
    /// When the certificate cannot be an authority's.
    pub(crate) fn from_parts(
        trust_domain: &str,
        certificate: CertificateDer<'static>,
        key: KeyPair,
    ) -> Result<Self, IssueError> {
        Ok(Self {
            issuer: Issuer::from_ca_cert_der(&certificate, key)?,
            certificate,
            trust_domain: trust_domain.to_owned(),
        })
    }

    /// The private key as PEM (PKCS #8).
    pub(crate) fn key_to_pem(&self) -> String {
        encode_pem("PRIVATE KEY", self.issuer.key().serialized_der())
    }

    /// The self-signed certificate that peers trust.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Trust domain that it signs for.
    pub(crate) fn trust_domain(&self) -> &str {
        &self.trust_domain
    }

    pub(crate) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }

    /// [`Self::certificate`] as PEM.
    pub fn to_pem(&self) -> String {
        encode_pem("CERTIFICATE", self.certificate())
    }

    /// Signs a certificate for `id` with the DNS name `name`, valid from `now` for `lifetime`.
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
    ) -> Result<IssuedCertificate, IssueError> {
        if id.trust_domain != self.trust_domain {
            let (own, requested) = (self.trust_domain.clone(), id.trust_domain.clone());
            return Err(IssueError::TrustDomain { own, requested });
        }
        // Parsing verifies the request's own signature, the proof of possession (RFC 2986).
        let mut request =
            CertificateSigningRequestParams::from_der(csr).map_err(IssueError::Request)?;
        let not_after = now + lifetime;
        // Replaces everything that the request asked for, so that no extension of it survives.
        request.params = leaf_params(id, name)?;
        (request.params.not_before, request.params.not_after) =
            ((now - CLOCK_SKEW_GRACE).into(), not_after.into());
        let certificate = request.signed_by(&self.issuer)?.der().clone();
        Ok(IssuedCertificate {
            certificate,
            not_after,
        })
    }
}

/// An X.509-SVID (section 4): exactly one URI, no CA, for both ends of a connection.
fn leaf_params(id: &SpiffeId, name: &str) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new([name.to_owned()])?;
    // Empty, because rcgen's default names itself; the identity is in the SAN.
    params.distinguished_name = DistinguishedName::new();
    params
        .subject_alt_names
        .push(SanType::URI(id.to_string().try_into()?));
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        // An instance is called and calls with the same certificate.
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

pub(crate) fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_wire::identity::{CertificateRequest, Credentials, InvalidPem, parse_authority};

    #[test]
    fn credentials_survive_a_round_trip_through_pem() {
        let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
        let authority = Authority::new("sort", now, hour).unwrap();
        assert_eq!(
            parse_authority(&authority.to_pem()).unwrap(),
            *authority.certificate()
        );
        let id = "spiffe://sort/ns/job/fn/map/instance/3".parse().unwrap();
        let request = CertificateRequest::new().unwrap();
        let issued = authority
            .issue(request.csr(), &id, "map-3", now, hour)
            .unwrap();
        let credentials = request.into_credentials(id, "map-3".to_owned(), issued);
        let (certificate, key) = credentials.to_pem();
        let read = Credentials::from_pem(&certificate, &key).unwrap();
        assert_eq!(
            (&read.id, &read.name, &read.key),
            (&credentials.id, &credentials.name, &credentials.key)
        );
        assert_eq!(
            Credentials::from_pem(&key, &certificate),
            Err(InvalidPem::MissingBlock("private key"))
        );
        assert_eq!(
            Credentials::from_pem("", &key),
            Err(InvalidPem::MissingBlock("certificate"))
        );
        let without_identity = Credentials::from_pem(&authority.to_pem(), &key);
        assert!(
            matches!(without_identity, Err(InvalidPem::Certificate(_))),
            "a CA is no peer: {without_identity:?}"
        );
    }
}
