//! Which path does this call take, and why: pure decisions over facts that the caller already has.
//!
//! Paths are tried in order: memory first, then what the callee's function asks for (`nearpath.io/transport`), then what may stand in
//! for that. The first one that nothing stands against is taken. It is told what stood against memory or, of a stand-in, what stood
//! against that which was asked for: in the completion record, on request in the answer, and by `nearpath paths`.
#![forbid(unsafe_code)]

mod facts;
mod obstacle;
mod path;

use nearpath_types::policy::Transport;

pub use facts::{Call, Carrier, Edge, Facts};
pub use obstacle::Obstacle;
pub use path::Path;

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The first path that is open.
    pub path: Path,
    /// What stands against memory or, where this one stands in for another, against that. `None`: it is memory.
    pub obstacle: Option<Obstacle>,
}

/// Decides for one call to one instance. Where nothing is open, it is the last of the paths that may be taken: opening it fails and
/// tells why.
pub fn choose(facts: &Facts) -> Choice {
    let Some(far) = shared_memory(facts) else { return Choice { path: Path::Shm, obstacle: None } };
    let tried = carriers(facts);
    let wanted = against(tried[0], facts);
    let open = tried.iter().find(|path| against(**path, facts).is_none());
    match open.unwrap_or(&tried[tried.len() - 1]) {
        path if *path == tried[0] => Choice { path: *path, obstacle: Some(far) },
        path => Choice { path: *path, obstacle: wanted },
    }
}

/// What may carry a call, in order. Nothing is unencrypted between machines, unless the function asks for that. Within one, a function that asks for
/// encryption is called in clear only by who has no certificate, as where nobody issues any; it then knows of none itself.
fn carriers(facts: &Facts) -> &'static [Path] {
    let (same_node, may_be_clear) = (facts.edge.same_node, facts.edge.same_node && !facts.carrier.caller_named);
    match facts.carrier.transport {
        Transport::Tcp => &[Path::Http],
        Transport::Auto if same_node => &[Path::Http],
        Transport::Quic if may_be_clear => &[Path::Quic, Path::Tls, Path::Http],
        Transport::Auto | Transport::Quic => &[Path::Quic, Path::Tls],
        Transport::Tls13 | Transport::Tls12 if may_be_clear => &[Path::Tls, Path::Http],
        Transport::Tls13 | Transport::Tls12 => &[Path::Tls],
    }
}

fn against(path: Path, facts: &Facts) -> Option<Obstacle> {
    match path {
        Path::Shm => shared_memory(facts),
        Path::Quic => quic(facts),
        Path::Tls => tls(facts),
        Path::Http => None,
    }
}

/// What stands against shared memory, the most lasting first: that is what its reader can mend.
fn shared_memory(facts: &Facts) -> Option<Obstacle> {
    let Facts { edge, call, .. } = facts;
    first(&[
        (!edge.same_node, Obstacle::OtherNode),
        (!edge.callee_in_domain, Obstacle::NoDomain),
        (!edge.same_domain, Obstacle::OtherDomain),
        (!edge.caller_is_party, Obstacle::CallerNoParty),
        (!edge.callee_is_party, Obstacle::NoParty),
        (call.upgrade, Obstacle::Upgrade),
        (call.grpc, Obstacle::Grpc),
    ])
}

/// What stands against QUIC. gRPC does not: streams have trailers.
fn quic(facts: &Facts) -> Option<Obstacle> {
    let Facts { carrier, call, .. } = facts;
    first(&[
        (!carrier.caller_named, Obstacle::CallerNoIdentity),
        (!carrier.callee_named, Obstacle::NoIdentity),
        (carrier.udp_blocked, Obstacle::UdpBlocked),
        (call.upgrade, Obstacle::Upgrade),
    ])
}

fn tls(facts: &Facts) -> Option<Obstacle> {
    let carrier = &facts.carrier;
    first(&[
        (!carrier.caller_named, Obstacle::CallerNoIdentity),
        (!carrier.callee_named, Obstacle::NoIdentity),
        (!carrier.tls, Obstacle::NoTls),
    ])
}

fn first(standing: &[(bool, Obstacle)]) -> Option<Obstacle> {
    standing.iter().find_map(|(stands, obstacle)| stands.then_some(*obstacle))
}

#[cfg(test)]
mod tests;
