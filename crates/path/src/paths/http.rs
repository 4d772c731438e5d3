//! `http`: HTTP in clear. Nothing leaves the machine over it, unless the function asks for that.

use nearpath_types::policy::Transport;

use crate::{CallFacts, Obstacle, first};

pub(crate) fn obstacle(facts: &CallFacts) -> Option<Obstacle> {
    let CallFacts { edge, transport, .. } = facts;
    let is_allowed = match transport.wanted {
        Transport::Tcp => true,
        Transport::Auto => edge.same_node,
        // Where nobody issues certificates, the instance has none either, and takes calls in clear.
        Transport::Quic | Transport::Tls13 | Transport::Tls12 => edge.same_node && !transport.caller_has_certificate,
    };
    first(&[(!is_allowed, Obstacle::Excluded)])
}
