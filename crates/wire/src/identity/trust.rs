//! Trust: the decision about a peer, made for every connection.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_types::direct::ForeignAuthority;
use nearpath_types::spiffe::SpiffeRole;
use nearpath_types::{FunctionId, NodeName, SpiffeId};
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

mod foreign;

use foreign::ForeignDomain;

/// Rules that a peer is checked against. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Trust {
    trust_domain: Arc<str>,
    /// Roots for rustls, which accepts each of them for any peer.
    roots: Arc<RootCertStore>,
    /// Roots of the own trust domain.
    own_roots: Arc<RootCertStore>,
    revoked: Arc<HashSet<String>>,
    expected: ExpectedPeers,
    /// Other trust domains; their roots are among `roots`, too.
    foreign: Arc<[ForeignDomain]>,
}

/// Peers that a trust is for.
#[derive(Debug, Clone)]
enum ExpectedPeers {
    /// Gateways and instances call, instances are called.
    Workers {
        /// Functions that may call; `None`: every instance that may be called, too.
        callers: Option<Arc<HashSet<FunctionId>>>,
    },
    /// Gateways of nodes call each other.
    Nodes,
}

/// Identity of an admitted peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    /// SPIFFE ID of the peer.
    pub id: SpiffeId,
    /// Name of its incarnation.
    pub name: String,
    /// Start of its certificate's validity, in seconds since 1970.
    pub not_before: i64,
    /// End of its certificate's validity, in seconds since 1970. The connection must not be used
    /// for new calls after it.
    pub not_after: i64,
}

impl PeerIdentity {
    /// Time for which its certificate is still valid.
    pub fn remaining_validity(&self, now: SystemTime) -> Duration {
        let left = self
            .not_after
            .saturating_add(1)
            .saturating_sub(unix_seconds(now)); // a certificate is valid in the second of its end
        Duration::from_secs(u64::try_from(left).unwrap_or(0))
    }

    /// Name of the node whose gateway the peer is.
    ///
    /// # Errors
    /// [`PeerRefusal::NoNode`], also for a gateway whose node has no RFC 1123 name.
    pub fn node_name(&self) -> Result<NodeName, PeerRefusal> {
        let SpiffeRole::Gateway(node) = &self.id.role else {
            return Err(PeerRefusal::NoNode(self.id.clone()));
        };
        node.parse()
            .map_err(|_| PeerRefusal::NoNode(self.id.clone()))
    }
}

/// Reasons why a peer is not admitted. The peer sees these texts: they reveal only what its own
/// certificate says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerRefusal {
    /// The peer sent no certificate.
    #[error("the peer sent no certificate")]
    NoCertificate,
    /// The certificate is not X.509, or lacks a SPIFFE ID or a name.
    #[error("cannot read the peer's certificate: {0}")]
    Unreadable(String),
    /// The certificate has expired.
    #[error("the certificate of {0} has expired")]
    Expired(SpiffeId),
    /// The certificate is not valid yet: a clock is wrong.
    #[error("the certificate of {0} is not valid yet")]
    NotYetValid(SpiffeId),
    /// The controller revoked the certificate.
    #[error("the certificate of {0} was revoked")]
    Revoked(SpiffeId),
    /// The root of the certificate is not accepted any more.
    #[error("the root of the certificate of {0} is not accepted any more")]
    UnknownRoot(SpiffeId),
    /// The certificate belongs to another installation.
    #[error("{0} belongs to another trust domain")]
    TrustDomain(SpiffeId),
    /// No declared edge leads from the peer to this function.
    #[error("no edge leads from {0} to here")]
    NoEdge(SpiffeId),
    /// The peer is a caller, not an instance that can be called.
    #[error("{0} is not an instance of a function")]
    NoInstance(SpiffeId),
    /// The peer is an instance, and nodes are expected.
    #[error("{0} is not the gateway of a node")]
    NoNode(SpiffeId),
    /// The peer is another node than the one that was dialed.
    #[error("{id} is not the gateway of node {dialed}")]
    OtherNode {
        /// Identity in the peer's certificate. Boxed, because errors move often.
        id: Box<SpiffeId>,
        /// Name of the node that was dialed.
        dialed: String,
    },
}

impl Trust {
    /// Trusts certificates that these authorities signed for the trust domain.
    ///
    /// # Errors
    /// When a certificate cannot be an authority's.
    pub fn new(
        trust_domain: &str,
        authorities: &[CertificateDer<'static>],
    ) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority.clone())?;
        }
        let roots = Arc::new(roots);
        Ok(Self {
            trust_domain: trust_domain.into(),
            own_roots: roots.clone(),
            roots,
            revoked: Arc::default(),
            expected: ExpectedPeers::Workers { callers: None },
            foreign: Arc::default(),
        })
    }

    /// Returns the same trust for connections between nodes: it admits gateways only, and a dialed
    /// name is the name of a node.
    #[must_use]
    pub fn for_nodes(&self) -> Self {
        Self {
            expected: ExpectedPeers::Nodes,
            ..self.clone()
        }
    }

    /// Returns the same trust without the incarnations of these names.
    #[must_use]
    pub fn with_revoked(&self, revoked: HashSet<String>) -> Self {
        Self {
            revoked: Arc::new(revoked),
            ..self.clone()
        }
    }

    /// Returns the same trust for a worker: it admits gateways and instances of these functions
    /// only.
    #[must_use]
    pub fn with_callers(&self, callers: HashSet<FunctionId>) -> Self {
        Self {
            expected: ExpectedPeers::Workers {
                callers: Some(Arc::new(callers)),
            },
            ..self.clone()
        }
    }

    /// Returns the same trust, and instances of other trust domains: each authority for its own
    /// domain alone. Call it once.
    ///
    /// # Errors
    /// When a certificate cannot be an authority's.
    pub fn with_foreign(&self, foreign: &[ForeignAuthority]) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::clone(&self.roots);
        for authority in foreign {
            roots.add(authority.certificate.clone().into())?;
        }
        let domains = foreign.iter().map(ForeignDomain::new);
        Ok(Self {
            roots: Arc::new(roots),
            foreign: domains.collect::<Result<_, _>>()?,
            ..self.clone()
        })
    }

    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.roots)
    }

    /// Checks a peer's certificate. rustls has verified its chain and signature, now or when the
    /// session began.
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
            return foreign::admit_foreign(&self.foreign, &self.expected, peer, chain, now);
        }
        // With other domains among the roots, rustls has proved too little.
        if !self.foreign.is_empty() && !is_signed_by(self.own_roots.clone(), chain, now) {
            return Err(PeerRefusal::UnknownRoot(peer.id));
        }
        // By name: it identifies the incarnation, and stays unique.
        if self.revoked.contains(&peer.name) {
            // before the expiry check: a revoked peer must not get the drain that an expired one
            // gets
            return Err(PeerRefusal::Revoked(peer.id));
        }
        self.expected.check_caller(check_validity(peer, now)?)
    }

    /// Checks the peer of an open connection again, after the roots may have changed.
    ///
    /// # Errors
    /// See [`PeerRefusal`].
    pub fn readmit_peer(
        &self,
        chain: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<PeerIdentity, PeerRefusal> {
        let peer = self.admit_peer(chain, now)?;
        match self.has_root_of(chain, now) {
            true => Ok(peer),
            false => Err(PeerRefusal::UnknownRoot(peer.id)),
        }
    }

    /// Returns whether an accepted root signed for the chain.
    fn has_root_of(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> bool {
        is_signed_by(self.roots(), chain, now)
    }

    /// Checks a node's certificate for the node that it called, and returns the name of the calling
    /// node. See [`admit_peer`](Self::admit_peer).
    ///
    /// # Errors
    /// See [`PeerRefusal`].
    pub fn admit_node(
        &self,
        chain: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<NodeName, PeerRefusal> {
        self.admit_peer(chain, now)?.node_name()
    }

    /// Checks the certificate of a worker or node for a caller, which knows the name that it
    /// dialed. See [`admit_peer`](Self::admit_peer).
    ///
    /// # Errors
    /// See [`PeerRefusal`].
    pub fn admit_named_peer(
        &self,
        chain: &[CertificateDer<'_>],
        name: &str,
        now: SystemTime,
    ) -> Result<PeerIdentity, PeerRefusal> {
        self.expected
            .check_callee(self.admit_peer(chain, now)?, name)
    }
}

impl ExpectedPeers {
    fn check_caller(&self, peer: PeerIdentity) -> Result<PeerIdentity, PeerRefusal> {
        match (self, &peer.id.role) {
            (Self::Nodes, _) => peer.node_name().map(|_| peer),
            (
                Self::Workers {
                    callers: Some(callers),
                },
                SpiffeRole::Instance(function, _),
            ) if !callers.contains(function) => Err(PeerRefusal::NoEdge(peer.id)),
            (Self::Workers { .. }, _) => Ok(peer),
        }
    }

    /// Checks an admitted peer that was dialed as `name`.
    fn check_callee(&self, peer: PeerIdentity, name: &str) -> Result<PeerIdentity, PeerRefusal> {
        // rustls verified a resumed session when it began, so the name is compared again.
        match (self, &peer.id.role, peer.name == name) {
            (Self::Nodes, SpiffeRole::Gateway(node), true) if node == name => Ok(peer),
            (Self::Nodes, ..) => Err(PeerRefusal::OtherNode {
                id: Box::new(peer.id),
                dialed: name.to_owned(),
            }),
            (Self::Workers { .. }, SpiffeRole::Instance(..), true) => Ok(peer),
            (Self::Workers { .. }, _, true) => Err(PeerRefusal::NoInstance(peer.id)),
            (Self::Workers { .. }, _, false) => {
                Err(PeerRefusal::Unreadable(format!("it is for {}", peer.name)))
            }
        }
    }
}

/// Checks the times of a peer's certificate.
fn check_validity(peer: PeerIdentity, now: SystemTime) -> Result<PeerIdentity, PeerRefusal> {
    if peer.not_after < unix_seconds(now) {
        return Err(PeerRefusal::Expired(peer.id));
    }
    if unix_seconds(now) < peer.not_before {
        return Err(PeerRefusal::NotYetValid(peer.id));
    }
    Ok(peer)
}

/// Returns whether one of these roots signed for the chain.
fn is_signed_by(roots: Arc<RootCertStore>, chain: &[CertificateDer<'_>], now: SystemTime) -> bool {
    let Some((own, issuers)) = chain.split_first() else {
        return false;
    };
    let since = now.duration_since(SystemTime::UNIX_EPOCH);
    let now = UnixTime::since_unix_epoch(since.unwrap_or_default());
    // Only signatures matter here, which all providers of ring verify alike.
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
    verifier.is_ok_and(|verifier| verifier.verify_client_cert(own, issuers, now).is_ok())
}

/// Seconds since 1970, the unit of certificates.
pub(crate) fn unix_seconds(time: SystemTime) -> i64 {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

pub(crate) fn parse_certificate(
    certificate: &CertificateDer<'_>,
) -> Result<PeerIdentity, PeerRefusal> {
    let unreadable = |why: &str| PeerRefusal::Unreadable(why.to_owned());
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|error| unreadable(&error.to_string()))?;
    let names = parsed
        .subject_alternative_name()
        .ok()
        .flatten()
        .ok_or_else(|| unreadable("it has no subject alternative name"))?;
    let mut uris = names.value.general_names.iter().filter_map(uri_name);
    // X.509-SVID section 2: exactly one URI, else the identity would be ambiguous.
    let (Some(uri), None) = (uris.next(), uris.next()) else {
        return Err(unreadable("it must have exactly one URI"));
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
