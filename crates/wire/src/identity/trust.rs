//! The decision about a peer, made anew for every connection.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_types::spiffe::Role;
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
pub struct Peer {
    /// Who it is.
    pub id: SpiffeId,
    /// The name of its incarnation.
    pub name: String,
    /// Beginning of its certificate's life, in seconds since 1970.
    pub not_before: i64,
    /// End of its certificate's life, in seconds since 1970: the connection must not be used for new calls after it.
    pub not_after: i64,
}

impl Peer {
    /// How long its certificate is still good for.
    pub fn left(&self, now: SystemTime) -> Duration {
        let left = self.not_after.saturating_add(1).saturating_sub(seconds(now)); // its last second counts
        Duration::from_secs(u64::try_from(left).unwrap_or(0))
    }
}

/// Why a peer is not admitted. The texts go to the peer as well: they tell nothing that its own certificate does not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
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
    NotYet(SpiffeId),
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
    pub fn new(trust_domain: &str, authorities: &[CertificateDer<'static>]) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority.clone())?;
        }
        Ok(Self { trust_domain: trust_domain.into(), roots: Arc::new(roots), revoked: Arc::default(), callers: None })
    }

    /// The same, without the incarnations of these names.
    #[must_use]
    pub fn without(&self, revoked: HashSet<String>) -> Self {
        Self { revoked: Arc::new(revoked), ..self.clone() }
    }

    /// The same for who is called: by gateways, and by instances of these functions only.
    #[must_use]
    pub fn called_by(&self, callers: HashSet<FunctionId>) -> Self {
        Self { callers: Some(Arc::new(callers)), ..self.clone() }
    }

    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.roots)
    }

    /// Looks at the certificate of a peer whose chain and signature rustls has checked, now or when the session began.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn admit(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> Result<Peer, Refusal> {
        let peer = read(chain.first().ok_or(Refusal::NoCertificate)?)?;
        if peer.id.trust_domain != *self.trust_domain {
            return Err(Refusal::TrustDomain(peer.id));
        }
        if self.revoked.contains(&peer.name) {
            return Err(Refusal::Revoked(peer.id)); // also of one that has expired: who did may finish what it began
        }
        if peer.not_after < seconds(now) {
            return Err(Refusal::Expired(peer.id));
        }
        if seconds(now) < peer.not_before {
            return Err(Refusal::NotYet(peer.id));
        }
        match (&self.callers, &peer.id.role) {
            (Some(callers), Role::Instance(function, _)) if !callers.contains(function) => {
                Err(Refusal::NoEdge(peer.id))
            }
            _ => Ok(peer),
        }
    }

    /// As [`admit`](Self::admit), for a caller, who knows whom it called.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn admit_as(&self, chain: &[CertificateDer<'_>], name: &str, now: SystemTime) -> Result<Peer, Refusal> {
        let peer = self.admit(chain, now)?;
        match (&peer.id.role, peer.name == name) {
            (Role::Instance(..), true) => Ok(peer),
            (_, true) => Err(Refusal::NoInstance(peer.id)),
            (_, false) => Err(Refusal::Unreadable(format!("it is called {}", peer.name))),
        }
    }
}

/// Seconds since 1970, as certificates count.
pub(crate) fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

pub(super) fn read(certificate: &CertificateDer<'_>) -> Result<Peer, Refusal> {
    let unreadable = |why: &str| Refusal::Unreadable(why.to_owned());
    let (_, read) = X509Certificate::from_der(certificate).map_err(|error| unreadable(&error.to_string()))?;
    let names = read.subject_alternative_name().ok().flatten().ok_or_else(|| unreadable("it names nobody"))?;
    let mut uris = names.value.general_names.iter().filter_map(uri);
    let (Some(uri), None) = (uris.next(), uris.next()) else { return Err(unreadable("it has not exactly one URI")) };
    let id: SpiffeId = uri.parse().map_err(|error| unreadable(&format!("{uri}: {error}")))?;
    let name = names.value.general_names.iter().find_map(dns).ok_or_else(|| unreadable("it has no DNS name"))?;
    let (not_before, not_after) = (read.validity().not_before.timestamp(), read.validity().not_after.timestamp());
    Ok(Peer { id, name: name.to_owned(), not_before, not_after })
}

fn uri<'a>(name: &GeneralName<'a>) -> Option<&'a str> {
    if let GeneralName::URI(uri) = name { Some(uri) } else { None }
}

fn dns<'a>(name: &GeneralName<'a>) -> Option<&'a str> {
    if let GeneralName::DNSName(name) = name { Some(name) } else { None }
}
