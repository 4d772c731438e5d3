//! Dialers of an instance: one for its own machine, one for others.

use nearpath_types::InstanceLocality;
use nearpath_wire::quic::Dialer;

/// Dialers with the same identity.
#[derive(Debug, Clone)]
pub(crate) struct PeerDialers {
    /// Dials from the instance's own port.
    pub(crate) local: Dialer,
    /// Dials from the socket of the machine; `None`: the node has given none.
    pub(crate) direct: Option<Dialer>,
}

impl PeerDialers {
    /// Returns the dialer for a peer. Without a socket of the machine the own port is tried, which
    /// reaches only what the node's network carries.
    pub(super) fn for_locality(&self, locality: InstanceLocality) -> &Dialer {
        match (locality, &self.direct) {
            (InstanceLocality::OtherNode, Some(direct)) => direct,
            _ => &self.local,
        }
    }
}
