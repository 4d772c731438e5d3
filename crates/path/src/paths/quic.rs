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
        // Within a machine plain TCP is cheaper; between machines calls are encrypted.
        CallTransport::Auto => !edge.same_node,
        CallTransport::Tls13 | CallTransport::Tls12 | CallTransport::Tcp => false,
    };
    first_obstacle(&[
        // In the order in which they last: setting, certificates, network, then this call alone.
        (!is_wanted, Obstacle::Excluded),
        (
            !transport.caller_has_certificate,
            Obstacle::CallerNoIdentity,
        ),
        (!transport.callee_has_certificate, Obstacle::NoIdentity),
        (transport.udp_blocked, Obstacle::UdpBlocked),
        // An upgraded connection is a byte stream, which a call's frames cannot carry.
        (needs.upgrade, Obstacle::Upgrade),
        // Within a machine the function has asked for QUIC itself.
        (needs.bulk && !edge.same_node, Obstacle::Bulk),
        // It takes less CPU time; without one, a stream needs no handshake.
        (transport.kept_tls, Obstacle::KeptTls),
    ])
}
