//! Who a worker is to its peers, as text that goes with its orders.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_ca::{Authority, IssueError};
use nearpath_p2p::ticket::Job;
use nearpath_types::SpiffeId;
use nearpath_wire::identity::{BadPem, Credentials, Request, RequestError, Trust, authority_of};
use nearpath_wire::pair::{Own, Pair, name_of};
use nearpath_wire::quic::config::ConfigError;
use serde::{Deserialize, Serialize};

use crate::remote::worker_name::{self, BadName};

/// As JSON: everything in PEM.
#[derive(Serialize, Deserialize)]
struct Text {
    certificate: String,
    key: String,
    authority: String,
}

/// A worker's identity, and whose word it takes for its peers'.
#[derive(Debug, Clone)]
pub struct Identity {
    id: SpiffeId,
    own: Own,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum IdentityError {
    #[error("a worker's identity is JSON with `certificate`, `key` and `authority`: {0}")]
    Form(#[from] serde_json::Error),
    #[error("a worker's identity cannot be read: {0}")]
    Pem(#[from] BadPem),
    #[error("the job's authority cannot be trusted: {0}")]
    Authority(#[from] rustls::Error),
    #[error("a worker's identity is of no use: {0}")]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Name(#[from] BadName),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Issue(#[from] IssueError),
}

/// An identity for a worker, from now on for so long.
///
/// # Errors
/// When the name is none, or the system has no random numbers.
pub fn issue(authority: &Authority, job: &Job, worker: &str, life: Duration) -> Result<String, IdentityError> {
    let (id, request) = (worker_name::identity(job, worker)?, Request::new()?);
    let called = name_of(&id);
    let issued = authority.issue(request.csr(), &id, &called, SystemTime::now(), life)?;
    let (certificate, key) = request.complete(id, called, issued).to_pem();
    Ok(serde_json::to_string(&Text { certificate, key, authority: authority.to_pem() })?)
}

impl Identity {
    /// Reads one.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(text: &str) -> Result<Self, IdentityError> {
        let Text { certificate, key, authority } = serde_json::from_str(text)?;
        let credentials = Credentials::from_pem(&certificate, &key)?;
        let trust = Trust::new(&credentials.id.trust_domain, &[authority_of(&authority)?])?;
        let own = Own::new(&credentials, trust)?;
        Ok(Self { id: credentials.id, own })
    }

    /// Whose it is.
    pub fn id(&self) -> &SpiffeId {
        &self.id
    }

    /// For a connection to that peer.
    pub(crate) fn pair(&self, peer: SpiffeId) -> Arc<Pair> {
        Arc::new(self.own.with(peer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_read_as_it_was_issued() {
        let job: Job = "sort".parse().unwrap();
        let authority = Authority::new(job.as_str(), SystemTime::now(), Duration::from_secs(60)).unwrap();
        let text = issue(&authority, &job, "map.3", Duration::from_secs(60)).unwrap();
        let read = Identity::read(&text).unwrap();
        assert_eq!(*read.id(), worker_name::identity(&job, "map.3").unwrap());
        assert_eq!(
            *read.pair(worker_name::identity(&job, "map.4").unwrap()).peer(),
            worker_name::identity(&job, "map.4").unwrap()
        );
        assert!(Identity::read("{}").unwrap_err().to_string().contains("`certificate`"));
        assert!(issue(&authority, &"other".parse().unwrap(), "map.3", Duration::from_secs(60)).is_err());
    }
}
