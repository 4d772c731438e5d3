//! `tls`: HTTP over TLS. It stands in for QUIC.

use nearpath_types::policy::Transport;

use crate::{CallFacts, Obstacle, first};

pub(crate) fn obstacle(facts: &CallFacts) -> Option<Obstacle> {
    let CallFacts { edge, transport, .. } = facts;
    let is_wanted = match transport.wanted {
        Transport::Quic | Transport::Tls13 | Transport::Tls12 => true,
        Transport::Auto => !edge.same_node,
        Transport::Tcp => false,
    };
    first(&[
        (!is_wanted, Obstacle::Excluded),
        (!transport.caller_has_certificate, Obstacle::CallerNoIdentity),
        (!transport.callee_has_certificate, Obstacle::NoIdentity),
        (!transport.tls, Obstacle::NoTls),
    ])
}
