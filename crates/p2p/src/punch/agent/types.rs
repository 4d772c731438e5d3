//! What happens to an agent, and what it wants done.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::punch::candidate::{Candidate, CandidateKind, PairKey, Transport};
use crate::punch::probe::ProbeBytes;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentEvent {
    /// A socket can be reached at an address: its own, or the one at which the rendezvous sees it.
    LocalCandidate {
        /// [`CandidateKind::EgressHost`] or [`CandidateKind::Reflexive`].
        kind: CandidateKind,
        /// Of which kind the socket is.
        transport: Transport,
        /// The address.
        addr: SocketAddr,
        /// What the socket is bound to; a wildcard is fine.
        base: SocketAddr,
    },
    /// No more of these for now: the peer is told. May come again.
    Gathered,
    /// The peer said this through the rendezvous.
    PeerMessage(PunchMessage),
    /// A datagram came that may be a probe.
    Datagram {
        /// What the socket is bound to.
        base: SocketAddr,
        /// Where it came from.
        from: SocketAddr,
        /// All of it.
        bytes: Vec<u8>,
    },
    /// A TCP connection is there, dialled or accepted.
    Connected(PairKey),
    /// [`crate::punch::new_probe::SIZE`] bytes of a TCP connection.
    Read {
        /// Which connection.
        key: PairKey,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A dial came to nothing, or a connection ended.
    Disconnected(PairKey),
    /// Something of the peer's, other than a probe, came over the pair in use and was found authentic: it lives.
    PeerAlive,
    /// Time has passed.
    Tick,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentAction {
    /// Tell the peer, through the rendezvous.
    Signal(PunchMessage),
    /// Send a datagram.
    Send {
        /// From which socket, to where.
        key: PairKey,
        /// What.
        bytes: ProbeBytes,
    },
    /// Accept TCP connections there, with `SO_REUSEADDR` and `SO_REUSEPORT`, so that dials can leave from the same port.
    Listen {
        /// Where.
        base: SocketAddr,
    },
    /// Dial from the base's port. [`Event::Ended`] follows when this fails or takes longer than `patience`.
    Dial {
        /// From where to where.
        key: PairKey,
        /// How long it may take.
        timeout: Duration,
    },
    /// Write to a TCP connection.
    Write {
        /// Which.
        key: PairKey,
        /// What.
        bytes: ProbeBytes,
    },
    /// Close a TCP connection, or end its dial.
    Close(PairKey),
    /// Send through the relay from now on.
    UseRelay,
    /// Both sides have this pair: send over it from now on. No probe follows on a TCP connection.
    UsePair(PairKey),
    /// Come back with [`Event::Tick`] at this time; replaces the last such wish.
    Wake {
        /// When.
        at: Instant,
    },
    /// It is over, and there is no way to the peer.
    GiveUp(PunchFailure),
}

/// What the two tell each other through the rendezvous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PunchMessage {
    /// Where one can be reached: all candidates so far, at most [`crate::punch::any_candidate::MOST`].
    Offer(Vec<Candidate>),
    /// The sender has given up on a direct way.
    FallBack,
}

/// Why there is no way to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PunchFailure {
    /// Nothing came of the peer in time.
    #[error(
        "the peer has not said where it is: it did not come to the rendezvous in time, or has ended"
    )]
    NoOffer,
    /// No pair worked, and the relay is not allowed.
    #[error(
        "no direct way to the peer was found, and the relay is not allowed (allow it, or look at both sides' kind of NAT)"
    )]
    NoPath,
    /// The pair in use fell silent, and the relay is not allowed.
    #[error("the direct way to the peer fell silent, and the relay is not allowed: connect again")]
    PairLost,
    /// The peer gave up, and the relay is not allowed.
    #[error("the peer has given up on a direct way, and the relay is not allowed")]
    PeerGaveUp,
    /// The session ended before a pair was found, and the relay is not allowed.
    #[error("the session ended before a direct way was found: ask the rendezvous for a new one")]
    Expired,
}

/// How an agent goes about it. All that it sends to addresses that have not proven themselves is limited here.
#[derive(Debug, Clone)]
pub struct PunchSettings {
    /// Bytes may go through the relay: at once, until a direct way is found, and when there is none.
    pub allow_relay: bool,
    /// Which transport is taken when both work.
    pub preferred_transport: Transport,
    /// Between two first probes or dials.
    pub pace_interval: Duration,
    /// First probes or dials for a pair.
    pub max_tries: u32,
    /// First probes and dials to one IP address: a peer that offers somebody else's can do no more harm than this.
    pub max_tries_per_ip: u32,
    /// First probes and dials in all.
    pub max_tries_in_all: u32,
    /// After the first probe of a pair; grows by 8/5 each time, at most to a second.
    pub retry_interval: Duration,
    /// How long the peer's offer may take, and then the search.
    pub search_timeout: Duration,
    /// Silence after which the pair in use is probed: NATs keep UDP mappings for 30 s at least in practice (RFC 4787 REQ-5
    /// demands two minutes).
    pub keepalive_interval: Duration,
}

impl Default for PunchSettings {
    fn default() -> Self {
        Self {
            allow_relay: true,
            preferred_transport: Transport::Tcp,
            pace_interval: Duration::from_millis(5),
            max_tries: 12,
            max_tries_per_ip: 40,
            max_tries_in_all: 160,
            retry_interval: Duration::from_millis(20),
            search_timeout: Duration::from_secs(5),
            keepalive_interval: Duration::from_secs(15),
        }
    }
}

/// Where an agent is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentState {
    /// It looks for a direct way; bytes go through the relay if that is allowed.
    Searching,
    /// Both sides have this pair.
    Direct(PairKey),
    /// The relay it is.
    Relayed,
    /// There is no way.
    Ended(PunchFailure),
}

/// What an agent has counted, for people who ask why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AgentCounts {
    /// First probes and dials.
    pub tries: u32,
    /// What came and was no probe of the peer's.
    pub dropped: u64,
    /// Asks that came a second time, from where the peer has not offered to be.
    pub replayed: u64,
    /// Candidates of the peer's that are not probed.
    pub refused: u32,
}
