//! `shm`: shared memory, within a machine and a domain.

use crate::{CallFacts, Obstacle, first_obstacle};

pub(crate) fn obstacle(facts: &CallFacts) -> Option<Obstacle> {
    let CallFacts { edge, needs, .. } = facts;
    first_obstacle(&[
        (!edge.same_node, Obstacle::OtherNode),
        (!edge.callee_in_domain, Obstacle::NoDomain),
        (!edge.same_domain, Obstacle::OtherDomain),
        (!edge.caller_attached, Obstacle::CallerNoParty),
        (!edge.callee_attached, Obstacle::NoParty),
        (needs.upgrade, Obstacle::Upgrade),
        (needs.grpc, Obstacle::Grpc),
    ])
}
