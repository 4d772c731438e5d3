//! Checks of a node's files. Each is pure: contents and time are arguments.

use std::path::Path;
use std::time::SystemTime;

use nearpath_types::NodeName;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;

use super::NodeCredentialsError as Error;
use super::{CERTIFICATE_FILE, KEY_FILE, NodeFiles, ROOTS_FILE};
use crate::identity::{
    Credentials, InvalidPem, PeerIdentity, PeerRefusal, RootCertificate, Trust, unix_seconds,
};
use crate::quic::config::crypto_provider;

/// Decodes certificate and key.
pub(super) fn parse_credentials(folder: &Path, files: &NodeFiles) -> Result<Credentials, Error> {
    let text = |bytes, name: &str, block| {
        std::str::from_utf8(bytes).map_err(|_| Error::MissingBlock {
            path: folder.join(name),
            block,
        })
    };
    let certificate = text(&files.certificate, CERTIFICATE_FILE, "certificate")?;
    let key = text(&files.key, KEY_FILE, PRIVATE_KEY)?;
    Credentials::from_pem(certificate, key).map_err(|error| pem_error(folder, error))
}

/// Kind of the key's block, as [`InvalidPem`] names it.
const PRIVATE_KEY: &str = "private key";

fn pem_error(folder: &Path, error: InvalidPem) -> Error {
    let path = folder.join(CERTIFICATE_FILE);
    match error {
        InvalidPem::MissingBlock(PRIVATE_KEY) => Error::MissingBlock {
            path: folder.join(KEY_FILE),
            block: "private key (PKCS #8)",
        },
        InvalidPem::MissingBlock(block) => Error::MissingBlock { path, block },
        InvalidPem::Certificate(PeerRefusal::Unreadable(why)) => Error::Unreadable { path, why },
        InvalidPem::Certificate(other) => Error::Unreadable {
            path,
            why: other.to_string(),
        },
    }
}

/// Returns the name of the node whose gateway the certificate is for.
pub(super) fn node_name(folder: &Path, own: &PeerIdentity) -> Result<NodeName, Error> {
    let path = || folder.join(CERTIFICATE_FILE);
    let node = own.node_name().map_err(|_| Error::Role {
        path: path(),
        id: Box::new(own.id.clone()),
    })?;
    // Callers dial a node by its name, and rustls compares it with the DNS name.
    match own.name == node.as_str() {
        true => Ok(node),
        false => Err(Error::DnsName {
            path: path(),
            node,
            dns_name: own.name.clone(),
        }),
    }
}

/// Checks that the key belongs to the certificate.
pub(super) fn check_key(
    folder: &Path,
    node: &NodeName,
    credentials: &Credentials,
) -> Result<(), Error> {
    let (chain, key) = (credentials.chain.clone(), credentials.private_key());
    CertifiedKey::from_der(chain, key, &crypto_provider())
        .map(drop)
        .map_err(|error| Error::KeyMismatch {
            certificate: folder.join(CERTIFICATE_FILE),
            key: folder.join(KEY_FILE),
            node: node.clone(),
            why: error.to_string(),
        })
}

/// Checks that the certificate is valid at this time.
pub(super) fn check_validity(
    folder: &Path,
    node: &NodeName,
    validity: (SystemTime, SystemTime),
    now: SystemTime,
) -> Result<(), Error> {
    let (path, node) = (folder.join(CERTIFICATE_FILE), node.clone());
    let second = unix_seconds(now);
    // Like `Trust`: a certificate is valid in the second of its end.
    if unix_seconds(validity.1) < second {
        return Err(Error::Expired {
            path,
            node,
            at: validity.1,
        });
    }
    if second < unix_seconds(validity.0) {
        return Err(Error::NotYetValid {
            path,
            node,
            at: validity.0,
        });
    }
    Ok(())
}

/// Decodes the roots, without those that have expired: rustls does not check the dates of roots.
pub(super) fn parse_roots(
    folder: &Path,
    pem: &[u8],
    now: SystemTime,
) -> Result<Vec<RootCertificate>, Error> {
    let fault = |why: String| Error::Roots {
        path: folder.join(ROOTS_FILE),
        why,
    };
    let mut roots = RootCertificate::parse_all(pem).map_err(|error| fault(error.to_string()))?;
    roots.retain(|root| now <= root.not_after);
    match roots.is_empty() {
        true => Err(fault("every root in it has expired".to_owned())),
        false => Ok(roots),
    }
}

/// Creates the trust in nodes that these roots signed for.
pub(super) fn node_trust(
    folder: &Path,
    trust_domain: &str,
    roots: &[RootCertificate],
) -> Result<Trust, Error> {
    let ders: Vec<_> = roots.iter().map(|root| root.der.clone()).collect();
    let trust = Trust::new(trust_domain, &ders).map_err(|error| Error::Roots {
        path: folder.join(ROOTS_FILE),
        why: error.to_string(),
    })?;
    Ok(trust.for_nodes())
}

/// Checks that peers with the same roots accept the certificate, from a caller and from a callee.
pub(super) fn check_issuer(
    folder: &Path,
    node: &NodeName,
    credentials: &Credentials,
    trust: &Trust,
    now: SystemTime,
) -> Result<(), Error> {
    verify_chain(node, credentials, trust, now).map_err(|why| Error::UnknownIssuer {
        certificate: folder.join(CERTIFICATE_FILE),
        roots: folder.join(ROOTS_FILE),
        node: node.clone(),
        why,
    })
}

fn verify_chain(
    node: &NodeName,
    credentials: &Credentials,
    trust: &Trust,
    now: SystemTime,
) -> Result<(), String> {
    let provider = crypto_provider();
    let (own, issuers) = credentials.chain.split_first().ok_or("it is empty")?;
    let since = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let now = UnixTime::since_unix_epoch(since);
    let name = ServerName::try_from(node.as_str())
        .map_err(|error| format!("{node} cannot be a TLS server name: {error}"))?;
    let as_callee = WebPkiServerVerifier::builder_with_provider(trust.roots(), provider.clone());
    let as_caller = WebPkiClientVerifier::builder_with_provider(trust.roots(), provider);
    let as_callee = as_callee.build().map_err(|error| error.to_string())?;
    let as_caller = as_caller.build().map_err(|error| error.to_string())?;
    as_callee
        .verify_server_cert(own, issuers, &name, &[], now)
        .map(drop)
        .and_then(|()| as_caller.verify_client_cert(own, issuers, now).map(drop))
        .map_err(|error| error.to_string())
}
