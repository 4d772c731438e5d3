//! Facts that a selection rests on, for each kind of traffic.

use nearpath_types::policy::CallTransport;

/// Facts about one call to one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallFacts {
    /// Relation of caller and instance.
    pub edge: EdgeFacts,
    /// Properties of both as ends of a connection.
    pub transport: TransportFacts,
    /// Requirements of the call itself.
    pub needs: CallNeeds,
}

/// Relation of a caller and one instance of its callee.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EdgeFacts {
    /// Both run on one machine.
    pub same_node: bool,
    /// The callee belongs to a chain, hence to a domain.
    pub callee_in_domain: bool,
    /// The caller belongs to that domain, too. The gateway belongs to every domain of its node.
    pub same_domain: bool,
    /// The caller is attached to the domain's shared memory.
    pub caller_attached: bool,
    /// The instance takes calls through shared memory, and the caller has a channel to it.
    pub callee_attached: bool,
    /// That channel leads to the instance's watchdog: the function's code does not use shared memory.
    pub callee_is_watchdog: bool,
}

/// A caller and an instance as ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransportFacts {
    /// The transport that the callee's function asks for.
    pub wanted: CallTransport,
    /// The caller has a certificate.
    pub caller_has_certificate: bool,
    /// The instance has a certificate.
    pub callee_has_certificate: bool,
    /// UDP did not get through to the instance lately.
    pub udp_blocked: bool,
    /// Both speak TLS over TCP.
    pub tls: bool,
    /// A kept connection over TLS to the other node can carry the call.
    pub kept_tls: bool,
    /// The caller may connect to the function's own port, inside the instance.
    pub own_port: bool,
}

impl EdgeFacts {
    /// The instance is on another node: there is no shared memory.
    pub const OTHER_NODE: Self = Self {
        same_node: false,
        callee_in_domain: false,
        same_domain: false,
        caller_attached: false,
        callee_attached: false,
        callee_is_watchdog: false,
    };
}

impl TransportFacts {
    /// Two ends without certificates: only HTTP over TCP is possible.
    pub const PLAIN: Self = Self {
        wanted: CallTransport::Tcp,
        caller_has_certificate: false,
        callee_has_certificate: false,
        udp_blocked: false,
        tls: false,
        kept_tls: false,
        own_port: false,
    };

    /// Two watchdogs that their node has introduced to each other: they have certificates for QUIC.
    pub const INTRODUCED: Self = Self {
        wanted: CallTransport::Quic,
        caller_has_certificate: true,
        callee_has_certificate: true,
        ..Self::PLAIN
    };
}

/// Requirements of a call on its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallNeeds {
    /// Its connection will be upgraded (a WebSocket).
    pub upgrade: bool,
    /// gRPC: its trailers need HTTP/2, or QUIC, up to the function.
    pub grpc: bool,
    /// Its request announces trailers (RFC 9110 section 6.6.2).
    pub trailers: bool,
    /// Its body is long or of unknown length.
    pub bulk: bool,
    /// The watchdog: its body streams, or it is not a plain request for another reason.
    pub watchdog: bool,
}

impl CallNeeds {
    /// A plain call, which every path can carry.
    pub const PLAIN: Self = Self {
        upgrade: false,
        grpc: false,
        trailers: false,
        bulk: false,
        watchdog: false,
    };
}

/// Facts about a link between two workers that a rendezvous has introduced to each other.
///
/// The kinds of NAT between them are not among the facts: the search tries, and its outcome counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkFacts {
    /// The search for a direct connection.
    pub direct: DirectSearch,
    /// The link may use the relay.
    pub relay_allowed: bool,
}

/// The state or the outcome of a search for a direct connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DirectSearch {
    /// Not begun: the link has carried too little so far.
    NotNeeded,
    /// Running.
    Running,
    /// A direct connection exists.
    Connected,
    /// The peer's candidates did not come in time.
    NoOffer,
    /// There is no local port to search from.
    NoPort,
    /// No packet got through, in either direction.
    NoRoute,
    /// The peer has given up.
    PeerGaveUp,
    /// A connection was found, and its handshake failed.
    Unusable,
}

/// Facts about one connection of a function to a destination outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressFacts {
    /// The destination takes plain TCP, so a connected socket of the pool can be handed over as it
    /// is.
    pub plain_tcp: bool,
    /// The function's own socket, as far as it was inspected.
    pub socket: SocketState,
    /// The pool has a warm connection to the destination.
    pub warm_socket: bool,
}

/// The outcome of inspecting a function's socket before another one takes its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SocketState {
    /// Unchanged since it was made.
    New,
    /// No TCP socket of the address's family.
    OtherKind,
    /// Bound, or used before.
    Used,
    /// Has a flag that no new socket has.
    Flags,
    /// Has an option that cannot be copied to another socket.
    UncopiedOption,
    /// Another descriptor refers to it.
    Shared,
    /// An epoll instance watches it.
    Watched,
    /// Its process has too many open descriptors to inspect.
    TooManyDescriptors,
    /// Its thread has ended, or the kernel does not allow the inspection.
    NotInspectable,
}

#[cfg(test)]
pub(crate) use exhaustive::TRANSPORTS;

/// All combinations of facts, for tests.
#[cfg(test)]
mod exhaustive {
    use super::*;

    pub(crate) const TRANSPORTS: [CallTransport; 5] = [
        CallTransport::Auto,
        CallTransport::Quic,
        CallTransport::Tls13,
        CallTransport::Tls12,
        CallTransport::Tcp,
    ];

    impl EdgeFacts {
        /// Edge without an obstacle.
        pub(crate) const NEAREST: Self = Self {
            same_node: true,
            callee_in_domain: true,
            same_domain: true,
            caller_attached: true,
            callee_attached: true,
            callee_is_watchdog: false,
        };
    }

    impl CallFacts {
        pub(crate) fn all_combinations() -> impl Iterator<Item = Self> {
            TRANSPORTS
                .into_iter()
                .flat_map(|wanted| (0..1 << 17).map(move |bits| Self::from_bits(wanted, bits)))
        }

        fn from_bits(wanted: CallTransport, bits: u32) -> Self {
            let bit = |n: u32| bits & (1 << n) != 0;
            Self {
                edge: EdgeFacts {
                    same_node: bit(0),
                    callee_in_domain: bit(1),
                    same_domain: bit(2),
                    caller_attached: bit(3),
                    callee_attached: bit(4),
                    callee_is_watchdog: bit(14),
                },
                transport: TransportFacts {
                    wanted,
                    caller_has_certificate: bit(5),
                    callee_has_certificate: bit(6),
                    udp_blocked: bit(7),
                    tls: bit(8),
                    kept_tls: bit(16),
                    own_port: bit(12),
                },
                needs: CallNeeds {
                    upgrade: bit(9),
                    grpc: bit(10),
                    trailers: bit(11),
                    bulk: bit(15),
                    watchdog: bit(13),
                },
            }
        }
    }

    impl LinkFacts {
        pub(crate) fn all_combinations() -> impl Iterator<Item = Self> {
            use DirectSearch::{
                Connected, NoOffer, NoPort, NoRoute, NotNeeded, PeerGaveUp, Running, Unusable,
            };
            let searches = [
                NotNeeded, Running, Connected, NoOffer, NoPort, NoRoute, PeerGaveUp, Unusable,
            ];
            searches.into_iter().flat_map(|direct| {
                [true, false].map(|relay_allowed| Self {
                    direct,
                    relay_allowed,
                })
            })
        }
    }

    impl EgressFacts {
        pub(crate) fn all_combinations() -> impl Iterator<Item = Self> {
            use SocketState::{
                Flags, New, NotInspectable, OtherKind, Shared, TooManyDescriptors, UncopiedOption,
                Used, Watched,
            };
            let sockets = [
                New,
                OtherKind,
                Used,
                Flags,
                UncopiedOption,
                Shared,
                Watched,
                TooManyDescriptors,
                NotInspectable,
            ];
            let of = |socket, bits: u8| Self {
                plain_tcp: bits & 1 != 0,
                socket,
                warm_socket: bits & 2 != 0,
            };
            sockets
                .into_iter()
                .flat_map(move |socket| (0..4).map(move |bits| of(socket, bits)))
        }
    }
}
