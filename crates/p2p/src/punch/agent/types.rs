//! Events and actions of an agent, and its settings.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::punch::candidate::{Candidate, CandidateKind, PairKey, Transport};
use crate::punch::probe::ProbeBytes;

/// Event for an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentEvent {
    /// Socket is reachable at an address: its own, or its mapped address.
    LocalCandidate {
        /// [`CandidateKind::Host`] or [`CandidateKind::Reflexive`].
        kind: CandidateKind,
        /// Transport of the socket.
        transport: Transport,
        /// Reachable address.
        addr: SocketAddr,
        /// Bound address of the socket; a wildcard is fine.
        base: SocketAddr,
    },
    /// An observer was asked for the mapped address of a socket: a reflexive candidate may follow.
    ObserverAsked {
        /// Transport of the socket.
        transport: Transport,
        /// Bound address of the socket.
        base: SocketAddr,
    },
    /// No more candidates for now: send the offer. May be repeated.
    Gathered,
    /// Message of the peer, through the rendezvous.
    PeerMessage(PunchMessage),
    /// Datagram that may be a probe.
    Datagram {
        /// Bound address of the socket.
        base: SocketAddr,
        /// Source address.
        from: SocketAddr,
        /// Content of the datagram.
        bytes: Vec<u8>,
    },
    /// TCP connection is open, dialled or accepted.
    Connected(PairKey),
    /// [`crate::punch::probe::PROBE_BYTES`] bytes of a TCP connection.
    Read {
        /// Connection that was read.
        key: PairKey,
        /// Bytes read.
        bytes: Vec<u8>,
    },
    /// Dial failed, or a connection ended.
    Disconnected(PairKey),
    /// Authenticated data other than a probe came over the pair in use.
    PeerAlive,
    /// Time has passed.
    Tick,
}

/// Action for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentAction {
    /// Send a message to the peer, through the rendezvous.
    Signal(PunchMessage),
    /// Send a datagram.
    Send {
        /// Socket and destination.
        key: PairKey,
        /// Bytes to send.
        bytes: ProbeBytes,
    },
    /// Send [`crate::punch::probe::OPENING_DATAGRAM`]: it opens the own NAT, and expires before the
    /// peer's.
    SendOpening {
        /// Socket and destination.
        key: PairKey,
        /// Hop limit of this datagram.
        hop_limit: u8,
    },
    /// Accept TCP connections, with `SO_REUSEADDR` and `SO_REUSEPORT`, so that dials can leave from
    /// the same port.
    Listen {
        /// Address to listen on.
        base: SocketAddr,
    },
    /// Dial from the base's port. [`AgentEvent::Disconnected`] follows on failure or timeout.
    Dial {
        /// Local and remote address.
        key: PairKey,
        /// Time for the dial, after the opening.
        timeout: Duration,
        /// Opening of the own NAT before the dial.
        opening: Option<DialOpening>,
    },
    /// Write to a TCP connection.
    Write {
        /// Connection to write to.
        key: PairKey,
        /// Bytes to write.
        bytes: ProbeBytes,
    },
    /// Close a TCP connection, or abort its dial.
    Close(PairKey),
    /// Send through the relay from now on.
    UseRelay,
    /// Send over this pair from now on: both sides have it. No probe follows on a TCP connection.
    UsePair(PairKey),
    /// Deliver [`AgentEvent::Tick`] at this time; replaces the previous request.
    Wake {
        /// Time of the tick.
        at: Instant,
    },
    /// The search has failed, and there is no relay.
    GiveUp(PunchFailure),
}

/// SYN that opens the own NAT, and expires before the peer's.
///
/// Only the SYN has the hop limit: the handshake continues if the peer's SYN comes meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DialOpening {
    /// Hop limit of the SYN.
    pub hop_limit: u8,
    /// Time for the peer's SYN.
    pub period: Duration,
}

/// Message between the agents, through the rendezvous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PunchMessage {
    /// All candidates so far, at most [`crate::punch::candidate::MAX_CANDIDATES`].
    Offer(Vec<Candidate>),
    /// Sender has given up on a direct connection.
    FallBack,
}

/// Reason why there is no path to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PunchFailure {
    /// No offer of the peer arrived in time.
    #[error("no candidates from the peer: it did not reach the rendezvous in time, or has ended")]
    NoOffer,
    /// No pair worked, and the relay is not allowed.
    #[error(
        "no direct connection, and the relay is not allowed: allow it, or check both sides' kind of NAT"
    )]
    NoPath,
    /// Pair in use fell silent, and the relay is not allowed.
    #[error("the direct connection fell silent, and the relay is not allowed: connect again")]
    PairLost,
    /// Peer gave up, and the relay is not allowed.
    #[error("the peer has given up on a direct connection, and the relay is not allowed")]
    PeerGaveUp,
    /// Session expired before a pair worked, and the relay is not allowed.
    #[error("the session expired before a direct connection existed: call again")]
    Expired,
}

/// Settings of an agent. They limit all that it sends to unproven addresses.
#[derive(Debug, Clone)]
pub struct PunchSettings {
    /// True if the relay may carry bytes: at once, until a direct connection exists, and without
    /// one.
    pub allow_relay: bool,
    /// Transport that is chosen when both work.
    pub preferred_transport: Transport,
    /// Interval between two first probes or dials.
    pub pace_interval: Duration,
    /// Maximum of first probes or dials per pair.
    pub max_tries: u32,
    /// Maximum of first probes and dials per IP address: a peer that offers a victim's address can
    /// cause no more.
    pub max_tries_per_ip: u32,
    /// Maximum of first probes and dials in total.
    pub max_tries_in_all: u32,
    /// Delay after the first probe of a pair; grows by 8/5 each time, up to a second.
    pub retry_interval: Duration,
    /// Time for the peer's offer, and then for the search.
    pub search_timeout: Duration,
    /// Silence after which the pair in use is probed. NATs keep UDP mappings for at least 30 s in
    /// practice (RFC 4787 REQ-5 requires two minutes).
    pub keepalive_interval: Duration,
}

impl Default for PunchSettings {
    fn default() -> Self {
        Self {
            allow_relay: true,
            preferred_transport: Transport::Tcp,
            // 200 new addresses a second at most: a burst would overflow small NAT tables.
            pace_interval: Duration::from_millis(5),
            // Twelve tries with growing delays span 4.3 s of the search timeout.
            max_tries: 12,
            max_tries_per_ip: 40,
            max_tries_in_all: 160,
            retry_interval: Duration::from_millis(20),
            search_timeout: Duration::from_secs(5),
            keepalive_interval: Duration::from_secs(15),
        }
    }
}

/// State of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentState {
    /// Searching; bytes go through the relay if that is allowed.
    Searching,
    /// Both sides have this pair.
    Direct(PairKey),
    /// Relay is used.
    Relayed,
    /// No path to the peer.
    Ended(PunchFailure),
}

/// Counters of an agent, for diagnosis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AgentCounts {
    /// First probes and dials.
    pub tries: u32,
    /// Received bytes that were no probe of the peer.
    pub dropped: u64,
    /// Repeated requests, from addresses that the peer has not offered.
    pub replayed: u64,
    /// Candidates of the peer that are not probed.
    pub refused: u32,
}
