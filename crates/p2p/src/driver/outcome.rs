//! Outcome of the search for a direct connection, for people and for the path's name.

use std::net::SocketAddr;
use std::time::Duration;

use crate::punch::Transport;
use crate::punch::agent::PunchFailure;

/// Present state of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchOutcome {
    /// No search: the control connection carries all that the link has sent so far.
    NotNeeded,
    /// Search is running.
    Searching,
    /// Direct connection exists (path `punch`).
    Direct {
        /// Transport of the connection.
        transport: Transport,
        /// Address of the peer, as seen from here.
        remote: SocketAddr,
        /// Round trip, as the probes measured it.
        round_trip: Option<Duration>,
        /// Time from the start of the search.
        elapsed: Duration,
    },
    /// No direct connection; the relay carries the bytes (path `relay`).
    Relayed(RelayReason),
    /// Neither a direct connection nor a relay.
    Failed(PunchFailure),
}

/// Reason for using the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RelayReason {
    /// No offer of the peer arrived in time.
    #[error("no candidates from the peer: it may be busy, or have an older version")]
    NoOffer,
    /// No local port for a search.
    #[error("no search for a direct connection: this worker has no port")]
    NoPort,
    /// No packet passed between the two, in either direction.
    #[error("no direct connection: NATs or firewalls block both directions")]
    NoPath,
    /// Peer has given up.
    #[error("the peer has given up the search for a direct connection")]
    PeerGaveUp,
    /// Direct connection was found and failed.
    #[error("a direct path was found, but the connection over it failed")]
    Unusable,
}
