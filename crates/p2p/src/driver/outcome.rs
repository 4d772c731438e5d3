//! What came of looking for a direct connection, for people and for the path's name.

use std::net::SocketAddr;
use std::time::Duration;

use crate::punch::Transport;
use crate::punch::agent::PunchFailure;

/// What is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchOutcome {
    /// It is not looked for: the line does for what the link has carried so far.
    NotNeeded,
    /// It is being looked for.
    Searching,
    /// There is a direct connection (path `punch`).
    Direct {
        /// Over what.
        transport: Transport,
        /// Where the peer is, as seen from here.
        remote: SocketAddr,
        /// The round trip, as the probes took it.
        round_trip: Option<Duration>,
        /// How long it took from the beginning.
        elapsed: Duration,
    },
    /// There is none; the relay carries the bytes (path `relay`).
    Relayed(RelayReason),
    /// There is none, and no relay.
    Failed(PunchFailure),
}

/// Why the relay it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RelayReason {
    /// Nothing came of the peer in time.
    #[error("the peer has not said where it is: it may be older, or busy")]
    NoOffer,
    /// There is no port to look from.
    #[error("no direct way was looked for: this worker has no port for one")]
    NoPort,
    /// Nothing got through between the two, in neither direction.
    #[error(
        "no direct way to the peer was found: what stands between does not let one side's packets in"
    )]
    NoPath,
    /// The peer has given up.
    #[error("the peer has given up on a direct way")]
    PeerGaveUp,
    /// A direct connection was found, and could not be used.
    #[error("a direct way to the peer was found, but no connection could be made over it")]
    Unusable,
}
