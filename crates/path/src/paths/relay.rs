//! `relay`: bytes between two workers, forwarded by the rendezvous.

use crate::{LinkFacts, Obstacle, first};

pub(crate) fn obstacle(facts: &LinkFacts) -> Option<Obstacle> {
    first(&[(!facts.relay_allowed, Obstacle::Excluded)])
}
