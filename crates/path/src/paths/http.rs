//! `http`: HTTP in clear. Nothing leaves the machine over it, unless the function asks for that.

use nearpath_types::policy::CallTransport;

use crate::{CallFacts, Obstacle, first_obstacle};

pub(crate) fn obstacle(facts: &CallFacts) -> Option<Obstacle> {
    let CallFacts {
        edge, transport, ..
    } = facts;
    let is_allowed = match transport.wanted {
        // The function asked for plain TCP, on any machine.
        CallTransport::Tcp => true,
        // Packets between instances of one node never leave the machine.
        CallTransport::Auto => edge.same_node,
        // Without an issuer the instance has no certificate either, and takes calls in clear.
        CallTransport::Quic | CallTransport::Tls13 | CallTransport::Tls12 => {
            edge.same_node && !transport.caller_has_certificate
        }
    };
    first_obstacle(&[(!is_allowed, Obstacle::Excluded)])
}
