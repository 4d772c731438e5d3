//! `pool`: a warm socket in the place of the function's own. The egress proxy takes every
//! connection with an obstacle.

use crate::{EgressFacts, Obstacle, SocketState, first_obstacle};

pub(crate) fn obstacle(facts: &EgressFacts) -> Option<Obstacle> {
    // Plain TCP first: without it no socket has to be inspected.
    let before = first_obstacle(&[(!facts.plain_tcp, Obstacle::NeedsAdapter)]);
    // The warm socket is checked last: none leaves the pool for a socket that it cannot replace.
    before
        .or_else(|| socket_obstacle(facts.socket))
        .or_else(|| first_obstacle(&[(!facts.warm_socket, Obstacle::NoWarmSocket)]))
}

fn socket_obstacle(state: SocketState) -> Option<Obstacle> {
    match state {
        SocketState::New => None,
        SocketState::OtherKind => Some(Obstacle::SocketKind),
        SocketState::Used => Some(Obstacle::SocketUsed),
        SocketState::Flags => Some(Obstacle::SocketFlags),
        SocketState::UncopiedOption => Some(Obstacle::SocketOption),
        SocketState::Shared => Some(Obstacle::SocketShared),
        SocketState::Watched => Some(Obstacle::SocketWatched),
        SocketState::TooManyDescriptors => Some(Obstacle::TooManyDescriptors),
        SocketState::NotInspectable => Some(Obstacle::NotInspectable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Path, select_paths};

    #[test]
    fn only_a_new_socket_for_a_plain_destination_is_replaced() {
        for facts in EgressFacts::all_combinations() {
            let is_replaced =
                facts.plain_tcp && facts.socket == SocketState::New && facts.warm_socket;
            assert_eq!(
                select_paths(&facts).allows_path(Path::Pool),
                is_replaced,
                "{facts:?}"
            );
        }
        let empty = select_paths(&EgressFacts {
            plain_tcp: true,
            socket: SocketState::New,
            warm_socket: false,
        });
        assert_eq!(
            empty.obstacles().next(),
            Some((Path::Pool, Obstacle::NoWarmSocket))
        );
    }
}
