//! `tls`: HTTP over TLS. It stands in for QUIC.

use nearpath_types::policy::CallTransport;

use crate::{CallFacts, Obstacle, first_obstacle};

pub(crate) fn obstacle(facts: &CallFacts) -> Option<Obstacle> {
    let CallFacts {
        edge, transport, ..
    } = facts;
    let is_wanted = match transport.wanted {
        CallTransport::Quic | CallTransport::Tls13 | CallTransport::Tls12 => true,
        CallTransport::Auto => !edge.same_node,
        CallTransport::Tcp => false,
    };
    first_obstacle(&[
        (!is_wanted, Obstacle::Excluded),
        (
            !transport.caller_has_certificate,
            Obstacle::CallerNoIdentity,
        ),
        (!transport.callee_has_certificate, Obstacle::NoIdentity),
        (!transport.tls, Obstacle::NoTls),
    ])
}
