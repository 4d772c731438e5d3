//! `quic`: a stream to the instance's watchdog. gRPC is no obstacle: streams have trailers.

use nearpath_types::policy::Transport;

use crate::{CallFacts, Obstacle, first};

pub(crate) fn obstacle(facts: &CallFacts) -> Option<Obstacle> {
    let CallFacts { edge, transport, needs } = facts;
    let is_wanted = match transport.wanted {
        Transport::Quic => true,
        Transport::Auto => !edge.same_node,
        Transport::Tls13 | Transport::Tls12 | Transport::Tcp => false,
    };
    first(&[
        (!is_wanted, Obstacle::Excluded),
        (!transport.caller_has_certificate, Obstacle::CallerNoIdentity),
        (!transport.callee_has_certificate, Obstacle::NoIdentity),
        (transport.udp_blocked, Obstacle::UdpBlocked),
        (needs.upgrade, Obstacle::Upgrade),
    ])
}
