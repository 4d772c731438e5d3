//! Instances of other trust domains. rustls accepts a chain to any root; here each root counts for its
//! own domain alone, so that no node can speak for another.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use nearpath_types::FunctionId;
use nearpath_types::direct::ForeignAuthority;
use nearpath_types::spiffe::SpiffeRole;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

use super::{ExpectedPeers, PeerIdentity, PeerRefusal, check_validity, is_signed_by};

/// Another trust domain.
#[derive(Debug)]
pub(super) struct ForeignDomain {
    trust_domain: String,
    roots: Arc<RootCertStore>,
    /// Incarnations that may call.
    callers: BTreeMap<String, FunctionId>,
}

impl ForeignDomain {
    pub(super) fn new(authority: &ForeignAuthority) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate.clone().into())?;
        Ok(Self {
            trust_domain: authority.trust_domain.clone(),
            roots: Arc::new(roots),
            callers: authority.callers.clone(),
        })
    }
}

/// Checks an instance of another trust domain. A caller must be listed, which leaves out those that
/// have ended. A callee is checked by the name that was dialed.
pub(super) fn admit_foreign(
    domains: &[ForeignDomain],
    expected: &ExpectedPeers,
    peer: PeerIdentity,
    chain: &[CertificateDer<'_>],
    now: SystemTime,
) -> Result<PeerIdentity, PeerRefusal> {
    let mut domains = domains.iter();
    let Some(domain) = domains.find(|domain| domain.trust_domain == peer.id.trust_domain) else {
        return Err(PeerRefusal::TrustDomain(peer.id));
    };
    let peer = check_validity(peer, now)?;
    if !is_signed_by(domain.roots.clone(), chain, now) {
        return Err(PeerRefusal::UnknownRoot(peer.id));
    }
    let SpiffeRole::Instance(function, _) = &peer.id.role else {
        return Err(PeerRefusal::NoInstance(peer.id));
    };
    match expected {
        ExpectedPeers::Nodes => Err(PeerRefusal::TrustDomain(peer.id)),
        ExpectedPeers::Workers { callers: Some(_) }
            if domain.callers.get(&peer.name) != Some(function) =>
        {
            Err(PeerRefusal::NoEdge(peer.id))
        }
        ExpectedPeers::Workers { .. } => Ok(peer),
    }
}
