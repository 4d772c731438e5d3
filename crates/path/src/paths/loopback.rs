//! `loopback`: HTTP to the function's own port, from inside its network namespace.

use nearpath_types::policy::CallTransport;

use crate::{CallFacts, Obstacle, first_obstacle};

pub(crate) fn obstacle(facts: &CallFacts) -> Option<Obstacle> {
    let CallFacts {
        edge,
        transport,
        needs,
    } = facts;
    // A function with a transport of its own wants its watchdog to be the other end.
    let is_meant = edge.same_node
        && transport.own_port
        && transport.wanted == CallTransport::Auto
        && !(needs.watchdog || needs.upgrade || needs.grpc || needs.trailers);
    first_obstacle(&[(!is_meant, Obstacle::Excluded)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CallNeeds, EdgeFacts, Path, TransportFacts, select_paths};

    #[test]
    fn plain_calls_to_a_port_that_is_known_take_it() {
        let path = |edge, wanted, own_port, same_node, watchdog| {
            let facts = CallFacts {
                edge: EdgeFacts { same_node, ..edge },
                transport: TransportFacts {
                    wanted,
                    own_port,
                    ..TransportFacts::PLAIN
                },
                needs: CallNeeds {
                    watchdog,
                    ..CallNeeds::PLAIN
                },
            };
            select_paths(&facts).first_choice().path
        };
        let auto = CallTransport::Auto;
        let no_chain = EdgeFacts {
            callee_in_domain: false,
            ..EdgeFacts::NEAREST
        };
        let watchdog = EdgeFacts {
            callee_is_watchdog: true,
            ..EdgeFacts::NEAREST
        };
        for (edge, otherwise) in [
            (no_chain, Path::Http),
            (watchdog, Path::Shm),
            (EdgeFacts::NEAREST, Path::Shm),
        ] {
            let nearest = match edge == EdgeFacts::NEAREST {
                true => Path::Shm, // the function's code takes the call itself
                false => Path::Loopback,
            };
            assert_eq!(path(edge, auto, true, true, false), nearest, "{edge:?}");
            assert_eq!(path(edge, auto, true, true, true), otherwise);
            assert_eq!(path(edge, auto, false, true, false), otherwise);
            assert_eq!(path(edge, CallTransport::Tcp, true, true, false), otherwise);
        }
    }
}
