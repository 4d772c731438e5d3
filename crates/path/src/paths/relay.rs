//! `relay`: bytes between two workers, forwarded by the rendezvous.

use crate::{LinkFacts, Obstacle, first_obstacle};

pub(crate) fn obstacle(facts: &LinkFacts) -> Option<Obstacle> {
    // A relay works between any two workers, so only a setting can exclude it.
    first_obstacle(&[(!facts.relay_allowed, Obstacle::Excluded)])
}
