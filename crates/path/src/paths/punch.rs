//! `punch`: a direct connection between two workers.

use crate::{DirectSearch, LinkFacts, Obstacle};

pub(crate) fn obstacle(facts: &LinkFacts) -> Option<Obstacle> {
    // Kinds of NAT are no facts: the search tries, and its outcome counts (ADR 67).
    match facts.direct {
        DirectSearch::Connected => None,
        DirectSearch::NotNeeded => Some(Obstacle::ShortLink),
        DirectSearch::Running => Some(Obstacle::Searching),
        DirectSearch::NoOffer => Some(Obstacle::NoOffer),
        DirectSearch::NoPort => Some(Obstacle::NoPort),
        DirectSearch::NoRoute => Some(Obstacle::NoDirectRoute),
        DirectSearch::PeerGaveUp => Some(Obstacle::PeerGaveUp),
        DirectSearch::Unusable => Some(Obstacle::DirectUnusable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Path, PathChoice, select_paths};

    #[test]
    fn a_link_is_relayed_until_a_direct_connection_is_there() {
        for facts in LinkFacts::all_combinations() {
            let (plan, is_connected) = (
                select_paths(&facts),
                facts.direct == DirectSearch::Connected,
            );
            assert_eq!(plan.allows_path(Path::Punch), is_connected, "{facts:?}");
            assert_eq!(
                plan.allows_path(Path::Relay),
                facts.relay_allowed,
                "{facts:?}"
            );
            let path = if is_connected || !facts.relay_allowed {
                Path::Punch
            } else {
                Path::Relay
            };
            assert_eq!(plan.first_choice().path, path, "{facts:?}");
        }
        let searching = select_paths(&LinkFacts {
            direct: DirectSearch::Running,
            relay_allowed: true,
        });
        assert_eq!(
            searching.first_choice(),
            PathChoice {
                path: Path::Relay,
                obstacle: Some(Obstacle::Searching)
            }
        );
    }
}
