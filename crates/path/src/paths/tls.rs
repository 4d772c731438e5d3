//! `tls`: HTTP over TLS, also in place of QUIC.

use nearpath_types::policy::CallTransport;

use crate::{CallFacts, Obstacle, first_obstacle};

pub(crate) fn obstacle(facts: &CallFacts) -> Option<Obstacle> {
    let CallFacts {
        edge, transport, ..
    } = facts;
    let is_wanted = match transport.wanted {
        // TLS stands in for QUIC where UDP does not get through.
        CallTransport::Quic | CallTransport::Tls13 | CallTransport::Tls12 => true,
        // Within a machine plain TCP is cheaper; between machines calls are encrypted.
        CallTransport::Auto => !edge.same_node,
        CallTransport::Tcp => false,
    };
    first_obstacle(&[
        // In the order in which they last: setting, certificates, then TLS support of both ends.
        (!is_wanted, Obstacle::Excluded),
        (
            !transport.caller_has_certificate,
            Obstacle::CallerNoIdentity,
        ),
        (!transport.callee_has_certificate, Obstacle::NoIdentity),
        (!transport.tls, Obstacle::NoTls),
    ])
}
