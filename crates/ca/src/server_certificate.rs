//! Certificates of servers that the node answers for.

use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::authority::{Authority, CLOCK_SKEW_GRACE, IssueError, common_name};

/// A server's certificate with its key.
#[derive(Debug)]
pub struct ServerCertificate {
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// Its private key.
    pub key: PrivateKeyDer<'static>,
}

impl Authority {
    /// Creates a key, and signs a certificate for a server with these DNS names and IP addresses.
    ///
    /// # Errors
    /// When a name is invalid, or when signing fails.
    pub fn issue_server(
        &self,
        names: Vec<String>,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<ServerCertificate, IssueError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::new(names)?;
        // Verifiers read the names alone (RFC 6125 section 6.4.4).
        params.distinguished_name = common_name("nearpath");
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) =
            ((now - CLOCK_SKEW_GRACE).into(), (now + lifetime).into());
        let certificate = params.signed_by(&key, self.issuer())?.der().clone();
        let key =
            PrivateKeyDer::try_from(key.serialize_der()).expect("rcgen serializes keys as PKCS #8");
        Ok(ServerCertificate { certificate, key })
    }
}
