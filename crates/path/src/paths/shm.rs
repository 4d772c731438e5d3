//! `shm`: shared memory, within a machine and a domain.

use super::loopback;
use crate::{CallFacts, Obstacle, first_obstacle};

pub(crate) fn obstacle(facts: &CallFacts) -> Option<Obstacle> {
    let CallFacts { edge, needs, .. } = facts;
    // One proxy less: the watchdog would send the call on to that port (ADR 92).
    let own_port_is_nearer = edge.callee_is_watchdog && loopback::obstacle(facts).is_none();
    // In the order in which they last: machine, chain, attachment, then this call alone.
    first_obstacle(&[
        (!edge.same_node, Obstacle::OtherNode),
        (!edge.callee_in_domain, Obstacle::NoDomain),
        (!edge.same_domain, Obstacle::OtherDomain),
        (!edge.caller_attached, Obstacle::CallerNoEndpoint),
        (!edge.callee_attached, Obstacle::NoEndpoint),
        (own_port_is_nearer, Obstacle::OwnPort),
        // An upgraded connection is a byte stream, which messages cannot carry.
        (needs.upgrade, Obstacle::Upgrade),
        // gRPC needs trailers, which messages do not have (ADR 14).
        (needs.grpc, Obstacle::Grpc),
        (needs.trailers, Obstacle::Trailers),
    ])
}
