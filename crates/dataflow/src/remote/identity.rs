//! Identity of a worker towards its peers, as text that is part of its assignment.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_ca::{Authority, IssueError};
use nearpath_p2p::ticket::JobName;
use nearpath_types::SpiffeId;
use nearpath_wire::identity::{
    CertificateRequest, CertificateRequestError, Credentials, InvalidPem, Trust, parse_authority,
};
use nearpath_wire::p2p_tls::{P2pTlsConfig, PeerTlsConfig, worker_dns_name};
use nearpath_wire::quic::config::TlsConfigError;
use serde::{Deserialize, Serialize};

use crate::remote::worker_name::{self, InvalidWorkerName};

/// JSON form; all fields are PEM.
#[derive(Serialize, Deserialize)]
struct IdentityDocument {
    certificate: String,
    key: String,
    authority: String,
}

/// Identity of a worker, and the authority that it trusts for its peers.
#[derive(Debug, Clone)]
pub struct WorkerIdentity {
    id: SpiffeId,
    own_tls: P2pTlsConfig,
}

/// Reasons why an identity cannot be made or read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum IdentityError {
    #[error(
        "invalid worker identity: expected JSON with `certificate`, `key` and `authority`: {0}"
    )]
    InvalidJson(#[from] serde_json::Error),
    #[error("invalid worker identity: {0}")]
    InvalidPem(#[from] InvalidPem),
    #[error("the job's authority cannot be trusted: {0}")]
    UntrustedAuthority(#[from] rustls::Error),
    #[error("unusable worker identity: {0}")]
    TlsConfig(#[from] TlsConfigError),
    #[error(transparent)]
    InvalidName(#[from] InvalidWorkerName),
    #[error(transparent)]
    CertificateRequest(#[from] CertificateRequestError),
    #[error(transparent)]
    Issuance(#[from] IssueError),
}

/// Issues an identity for a worker, valid from now for `lifetime`.
///
/// # Errors
/// When the name is invalid, or the system has no random numbers.
pub fn issue_identity(
    authority: &Authority,
    job: &JobName,
    worker: &str,
    lifetime: Duration,
) -> Result<String, IdentityError> {
    // The key is generated here, by the job, and sent with the assignment: a worker has no
    // authenticated channel before that.
    let (id, request) = (
        worker_name::to_spiffe_id(job, worker)?,
        CertificateRequest::new()?,
    );
    let certificate_name = worker_dns_name(&id);
    let issued = authority.issue(
        request.csr(),
        &id,
        &certificate_name,
        SystemTime::now(),
        lifetime,
    )?;
    let (certificate, key) = request
        .into_credentials(id, certificate_name, issued)
        .to_pem();
    Ok(serde_json::to_string(&IdentityDocument {
        certificate,
        key,
        authority: authority.to_pem(),
    })?)
}

impl WorkerIdentity {
    /// Reads an identity.
    ///
    /// # Errors
    /// When the text is no identity.
    pub fn from_json(text: &str) -> Result<Self, IdentityError> {
        let IdentityDocument {
            certificate,
            key,
            authority,
        } = serde_json::from_str(text)?;
        let credentials = Credentials::from_pem(&certificate, &key)?;
        // The job's authority alone: other certificates, also of the same trust domain, are
        // refused.
        let trust = Trust::new(
            &credentials.id.trust_domain,
            &[parse_authority(&authority)?],
        )?;
        let own = P2pTlsConfig::new(&credentials, trust)?;
        Ok(Self {
            id: credentials.id,
            own_tls: own,
        })
    }

    /// SPIFFE id of the worker.
    pub fn id(&self) -> &SpiffeId {
        &self.id
    }

    /// TLS settings for a connection to that peer.
    pub(crate) fn peer_tls(&self, peer: SpiffeId) -> Arc<PeerTlsConfig> {
        Arc::new(self.own_tls.for_peer(peer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_read_as_it_was_issued() {
        let job: JobName = "sort".parse().unwrap();
        let authority =
            Authority::new(job.as_str(), SystemTime::now(), Duration::from_secs(60)).unwrap();
        let text = issue_identity(&authority, &job, "map.3", Duration::from_secs(60)).unwrap();
        let read = WorkerIdentity::from_json(&text).unwrap();
        assert_eq!(
            *read.id(),
            worker_name::to_spiffe_id(&job, "map.3").unwrap()
        );
        assert_eq!(
            *read
                .peer_tls(worker_name::to_spiffe_id(&job, "map.4").unwrap())
                .peer(),
            worker_name::to_spiffe_id(&job, "map.4").unwrap()
        );
        assert!(
            WorkerIdentity::from_json("{}")
                .unwrap_err()
                .to_string()
                .contains("`certificate`")
        );
        assert!(
            issue_identity(
                &authority,
                &"other".parse().unwrap(),
                "map.3",
                Duration::from_secs(60)
            )
            .is_err()
        );
    }
}
