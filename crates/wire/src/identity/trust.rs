//! The decision about a peer, made anew for every connection.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_types::spiffe::SpiffeRole;
use nearpath_types::{FunctionId, SpiffeId};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// What a peer is checked against. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Trust {
    trust_domain: Arc<str>,
    roots: Arc<RootCertStore>,
    revoked: Arc<HashSet<String>>,
    /// Functions that may call; none: whoever can be called, too.
    callers: Option<Arc<HashSet<FunctionId>>>,
}

/// A peer that was admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Who it is.
    pub id: SpiffeId,
    /// The name of its incarnation.
    pub name: String,
    /// Beginning of its certificate's life, in seconds since 1970.
    pub not_before: i64,
    /// End of its certificate's life, in seconds since 1970: the connection must not be used for new calls after it.
    pub not_after: i64,
}

impl PeerIdentity {
    /// How long its certificate is still good for.
    pub fn remaining_validity(&self, now: SystemTime) -> Duration {
        let left = self
            .not_after
            .saturating_add(1)
            .saturating_sub(unix_seconds(now)); // its last second counts
        Duration::from_secs(u64::try_from(left).unwrap_or(0))
    }
}

/// Why a peer is not admitted. The texts go to the peer as well: they tell nothing that its own certificate does not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerRefusal {
    /// It showed none.
    #[error("the peer showed no certificate")]
    NoCertificate,
    /// Not X.509, or without a SPIFFE ID and a name.
    #[error("the peer's certificate cannot be read: {0}")]
    Unreadable(String),
    /// Its time is over.
    #[error("the certificate of {0} has expired")]
    Expired(SpiffeId),
    /// Its time has not come: a clock is wrong.
    #[error("the certificate of {0} is not valid yet")]
    NotYetValid(SpiffeId),
    /// The controller took it back.
    #[error("the certificate of {0} was revoked")]
    Revoked(SpiffeId),
    /// Of another installation.
    #[error("{0} is of another trust domain")]
    TrustDomain(SpiffeId),
    /// No declared edge leads from it to here.
    #[error("no edge leads from {0} to here")]
    NoEdge(SpiffeId),
    /// It may call, but it is none that is called.
    #[error("{0} is no instance of a function")]
    NoInstance(SpiffeId),
}

impl Trust {
    /// Trusts what these authorities signed for this trust domain.
    ///
    /// # Errors
    /// When one of the certificates cannot be an authority's.
    pub fn new(
        trust_domain: &str,
        authorities: &[CertificateDer<'static>],
    ) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority.clone())?;
        }
        Ok(Self {
            trust_domain: trust_domain.into(),
            roots: Arc::new(roots),
            revoked: Arc::default(),
            callers: None,
        })
    }

    /// The same, without the incarnations of these names.
    #[must_use]
    pub fn with_revoked(&self, revoked: HashSet<String>) -> Self {
        Self {
            revoked: Arc::new(revoked),
            ..self.clone()
        }
    }

    /// The same for who is called: by gateways, and by instances of these functions only.
    #[must_use]
    pub fn with_callers(&self, callers: HashSet<FunctionId>) -> Self {
        Self {
            callers: Some(Arc::new(callers)),
            ..self.clone()
        }
    }

    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.roots)
    }

    /// Looks at the certificate of a peer whose chain and signature rustls has checked, now or when the session began.
    ///
    /// # Errors
    /// See [`PeerRefusal`].
    pub fn admit_peer(
        &self,
        chain: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<PeerIdentity, PeerRefusal> {
        let peer = parse_certificate(chain.first().ok_or(PeerRefusal::NoCertificate)?)?;
        if peer.id.trust_domain != *self.trust_domain {
            return Err(PeerRefusal::TrustDomain(peer.id));
        }
        if self.revoked.contains(&peer.name) {
            return Err(PeerRefusal::Revoked(peer.id)); // also of one that has expired: who did may finish what it began
        }
        if peer.not_after < unix_seconds(now) {
            return Err(PeerRefusal::Expired(peer.id));
        }
        if unix_seconds(now) < peer.not_before {
            return Err(PeerRefusal::NotYetValid(peer.id));
        }
        match (&self.callers, &peer.id.role) {
            (Some(callers), SpiffeRole::Instance(function, _)) if !callers.contains(function) => {
                Err(PeerRefusal::NoEdge(peer.id))
            }
            _ => Ok(peer),
        }
    }

    /// As [`admit`](Self::admit), for a caller, who knows whom it called.
    ///
    /// # Errors
    /// See [`PeerRefusal`].
    pub fn admit_named_peer(
        &self,
        chain: &[CertificateDer<'_>],
        name: &str,
        now: SystemTime,
    ) -> Result<PeerIdentity, PeerRefusal> {
        let peer = self.admit_peer(chain, now)?;
        match (&peer.id.role, peer.name == name) {
            (SpiffeRole::Instance(..), true) => Ok(peer),
            (_, true) => Err(PeerRefusal::NoInstance(peer.id)),
            (_, false) => Err(PeerRefusal::Unreadable(format!(
                "it is called {}",
                peer.name
            ))),
        }
    }
}

/// Seconds since 1970, as certificates count.
pub(crate) fn unix_seconds(time: SystemTime) -> i64 {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

pub(super) fn parse_certificate(
    certificate: &CertificateDer<'_>,
) -> Result<PeerIdentity, PeerRefusal> {
    let unreadable = |why: &str| PeerRefusal::Unreadable(why.to_owned());
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|error| unreadable(&error.to_string()))?;
    let names = parsed
        .subject_alternative_name()
        .ok()
        .flatten()
        .ok_or_else(|| unreadable("it names nobody"))?;
    let mut uris = names.value.general_names.iter().filter_map(uri_name);
    let (Some(uri), None) = (uris.next(), uris.next()) else {
        return Err(unreadable("it has not exactly one URI"));
    };
    let id: SpiffeId = uri
        .parse()
        .map_err(|error| unreadable(&format!("{uri}: {error}")))?;
    let name = names
        .value
        .general_names
        .iter()
        .find_map(dns_name)
        .ok_or_else(|| unreadable("it has no DNS name"))?;
    let (not_before, not_after) = (
        parsed.validity().not_before.timestamp(),
        parsed.validity().not_after.timestamp(),
    );
    Ok(PeerIdentity {
        id,
        name: name.to_owned(),
        not_before,
        not_after,
    })
}

fn uri_name<'a>(name: &GeneralName<'a>) -> Option<&'a str> {
    if let GeneralName::URI(uri) = name {
        Some(uri)
    } else {
        None
    }
}

fn dns_name<'a>(name: &GeneralName<'a>) -> Option<&'a str> {
    if let GeneralName::DNSName(name) = name {
        Some(name)
    } else {
        None
    }
}
