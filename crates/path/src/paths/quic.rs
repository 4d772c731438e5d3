//! `quic`: a stream to the instance's watchdog. gRPC is no obstacle: streams have trailers.

use nearpath_types::policy::CallTransport;

use crate::{CallFacts, Obstacle, first_obstacle};

pub(crate) fn obstacle(facts: &CallFacts) -> Option<Obstacle> {
    let CallFacts {
        edge,
        transport,
        needs,
    } = facts;
    let is_wanted = match transport.wanted {
        CallTransport::Quic => true,
        CallTransport::Auto => !edge.same_node,
        CallTransport::Tls13 | CallTransport::Tls12 | CallTransport::Tcp => false,
    };
    first_obstacle(&[
        (!is_wanted, Obstacle::Excluded),
        (
            !transport.caller_has_certificate,
            Obstacle::CallerNoIdentity,
        ),
        (!transport.callee_has_certificate, Obstacle::NoIdentity),
        (transport.udp_blocked, Obstacle::UdpBlocked),
        (needs.upgrade, Obstacle::Upgrade),
    ])
}
