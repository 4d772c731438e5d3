//! `shm`: shared memory, within a machine and a domain.

use crate::{CallFacts, Obstacle, first_obstacle};

pub(crate) fn obstacle(facts: &CallFacts) -> Option<Obstacle> {
    let CallFacts { edge, needs, .. } = facts;
    // In the order in which they last: machine, chain, attachment, then this call alone.
    first_obstacle(&[
        (!edge.same_node, Obstacle::OtherNode),
        (!edge.callee_in_domain, Obstacle::NoDomain),
        (!edge.same_domain, Obstacle::OtherDomain),
        (!edge.caller_attached, Obstacle::CallerNoEndpoint),
        (!edge.callee_attached, Obstacle::NoEndpoint),
        // An upgraded connection is a byte stream, which messages cannot carry.
        (needs.upgrade, Obstacle::Upgrade),
        // gRPC needs trailers, which messages do not have (ADR 14).
        (needs.grpc, Obstacle::Grpc),
        (needs.trailers, Obstacle::Trailers),
    ])
}
