// Code generated from contract/paths.toml by `cargo xtask generate`. DO NOT EDIT.
//! The lists of `contract/paths.toml`.

use std::ffi::CStr;

/// Path of a call, a link or a connection; within each kind of traffic the nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Path {
    /// Shared memory of one machine: a descriptor moves, the payload stays.
    Shm,
    /// HTTP to the function's own port, over a connection made inside the instance's network namespace.
    Loopback,
    /// TCP from instance to instance on another machine, through a virtual switch.
    Direct,
    /// A stream of a QUIC connection to the instance's watchdog.
    Quic,
    /// HTTP over TLS, with certificates on both sides, over a pooled connection.
    Tls,
    /// HTTP over a pooled TCP connection, in clear.
    Http,
    /// A direct connection between two workers, through a hole in each NAT.
    Punch,
    /// Bytes between two workers, forwarded by the rendezvous.
    Relay,
    /// A warm connection of the node's pool in the place of the function's own; else the egress proxy connects.
    Pool,
}

impl Path {
    /// Every path.
    pub const ALL: &'static [Self] = &[
        Self::Shm,
        Self::Loopback,
        Self::Direct,
        Self::Quic,
        Self::Tls,
        Self::Http,
        Self::Punch,
        Self::Relay,
        Self::Pool,
    ];

    /// Returns the name in records, metrics and headers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Loopback => "loopback",
            Self::Direct => "direct",
            Self::Quic => "quic",
            Self::Tls => "tls",
            Self::Http => "http",
            Self::Punch => "punch",
            Self::Relay => "relay",
            Self::Pool => "pool",
        }
    }

    /// Returns the name with a NUL at the end, for the C ABI.
    pub const fn c_name(self) -> &'static CStr {
        match self {
            Self::Shm => c"shm",
            Self::Loopback => c"loopback",
            Self::Direct => c"direct",
            Self::Quic => c"quic",
            Self::Tls => c"tls",
            Self::Http => c"http",
            Self::Punch => c"punch",
            Self::Relay => c"relay",
            Self::Pool => c"pool",
        }
    }

    /// Returns whether the path is planned: no code implements it, and nothing selects it.
    pub const fn is_planned(self) -> bool {
        matches!(self, Self::Direct)
    }

    /// Returns whether the path leaves bytes between machines unencrypted.
    pub const fn is_clear(self) -> bool {
        matches!(self, Self::Loopback | Self::Http | Self::Pool)
    }
}

/// Obstacle to a nearer path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Obstacle {
    /// A setting excludes this path: the function's nearpath.io/transport, or the link's relay.
    Excluded,
    /// The instance is on another machine.
    OtherNode,
    /// The function belongs to no chain (nearpath.io/chain), so it shares no memory.
    NoDomain,
    /// Caller and callee belong to different chains.
    OtherDomain,
    /// The caller does not use shared memory: its calls go to the gateway over HTTP.
    CallerNoEndpoint,
    /// The instance does not take calls through shared memory.
    NoEndpoint,
    /// The function's code takes calls at its own port, which is nearer than its watchdog's shared memory.
    OwnPort,
    /// The channel or the memory pool had no room for the call at that moment.
    NoRoom,
    /// An upgraded connection needs a connection of its own.
    Upgrade,
    /// The body is long or of unknown length, which TLS carries to another machine with less CPU time.
    Bulk,
    /// Kept TLS connections to the node carry complete requests with less CPU time.
    KeptTls,
    /// gRPC needs HTTP/2 up to the function.
    Grpc,
    /// The request announces trailers (`Trailer`), which messages in memory do not have.
    Trailers,
    /// The caller has no certificate: its calls go to the gateway over HTTP.
    CallerNoIdentity,
    /// The instance has no certificate; its log has the cause.
    NoIdentity,
    /// The instance did not answer over UDP recently; calls retry it from time to time.
    UdpBlocked,
    /// Caller and instance do not support TLS over TCP.
    NoTls,
    /// The link has carried too little to be worth the search for a direct connection.
    ShortLink,
    /// The search for a direct connection is still running.
    Searching,
    /// The peer has not sent its candidates in time: it may be an older version, or busy.
    NoOffer,
    /// This worker has no port to search from.
    NoPort,
    /// No direct connection was found: NATs or firewalls between the two workers drop their packets.
    NoDirectRoute,
    /// The peer has given up the search for a direct connection.
    PeerGaveUp,
    /// A direct connection was found, but its handshake failed.
    DirectUnusable,
    /// The destination needs TLS or an adapter, which the egress proxy has.
    NeedsAdapter,
    /// The pool had no warm connection to the destination at that moment.
    NoWarmSocket,
    /// The function's socket is not a TCP socket of the address's family.
    SocketKind,
    /// The function's socket is bound, or was used before.
    SocketUsed,
    /// The function's socket has a flag that no new socket has.
    SocketFlags,
    /// The function's socket has an option that cannot be copied to another one.
    SocketOption,
    /// Another descriptor refers to the function's socket.
    SocketShared,
    /// An epoll instance watches the function's socket.
    SocketWatched,
    /// The function has too many open descriptors to inspect.
    TooManyDescriptors,
    /// The function's socket could not be inspected: its thread has ended, or the kernel does not allow it.
    NotInspectable,
}

impl Obstacle {
    /// Every obstacle.
    pub const ALL: &'static [Self] = &[
        Self::Excluded,
        Self::OtherNode,
        Self::NoDomain,
        Self::OtherDomain,
        Self::CallerNoEndpoint,
        Self::NoEndpoint,
        Self::OwnPort,
        Self::NoRoom,
        Self::Upgrade,
        Self::Bulk,
        Self::KeptTls,
        Self::Grpc,
        Self::Trailers,
        Self::CallerNoIdentity,
        Self::NoIdentity,
        Self::UdpBlocked,
        Self::NoTls,
        Self::ShortLink,
        Self::Searching,
        Self::NoOffer,
        Self::NoPort,
        Self::NoDirectRoute,
        Self::PeerGaveUp,
        Self::DirectUnusable,
        Self::NeedsAdapter,
        Self::NoWarmSocket,
        Self::SocketKind,
        Self::SocketUsed,
        Self::SocketFlags,
        Self::SocketOption,
        Self::SocketShared,
        Self::SocketWatched,
        Self::TooManyDescriptors,
        Self::NotInspectable,
    ];

    /// Returns the name in records, metrics and headers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Excluded => "excluded",
            Self::OtherNode => "other_node",
            Self::NoDomain => "no_domain",
            Self::OtherDomain => "other_domain",
            Self::CallerNoEndpoint => "caller_no_endpoint",
            Self::NoEndpoint => "no_endpoint",
            Self::OwnPort => "own_port",
            Self::NoRoom => "no_room",
            Self::Upgrade => "upgrade",
            Self::Bulk => "bulk",
            Self::KeptTls => "kept_tls",
            Self::Grpc => "grpc",
            Self::Trailers => "trailers",
            Self::CallerNoIdentity => "caller_no_identity",
            Self::NoIdentity => "no_identity",
            Self::UdpBlocked => "udp_blocked",
            Self::NoTls => "no_tls",
            Self::ShortLink => "short_link",
            Self::Searching => "searching",
            Self::NoOffer => "no_offer",
            Self::NoPort => "no_port",
            Self::NoDirectRoute => "no_direct_route",
            Self::PeerGaveUp => "peer_gave_up",
            Self::DirectUnusable => "direct_unusable",
            Self::NeedsAdapter => "needs_adapter",
            Self::NoWarmSocket => "no_warm_socket",
            Self::SocketKind => "socket_kind",
            Self::SocketUsed => "socket_used",
            Self::SocketFlags => "socket_flags",
            Self::SocketOption => "socket_option",
            Self::SocketShared => "socket_shared",
            Self::SocketWatched => "socket_watched",
            Self::TooManyDescriptors => "too_many_descriptors",
            Self::NotInspectable => "not_inspectable",
        }
    }

    /// Returns an explanation for users.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Excluded => "a setting excludes this path: the function's nearpath.io/transport, or the link's relay",
            Self::OtherNode => "the instance is on another machine",
            Self::NoDomain => "the function belongs to no chain (nearpath.io/chain), so it shares no memory",
            Self::OtherDomain => "caller and callee belong to different chains",
            Self::CallerNoEndpoint => "the caller does not use shared memory: its calls go to the gateway over HTTP",
            Self::NoEndpoint => "the instance does not take calls through shared memory",
            Self::OwnPort => "the function's code takes calls at its own port, which is nearer than its watchdog's shared memory",
            Self::NoRoom => "the channel or the memory pool had no room for the call at that moment",
            Self::Upgrade => "an upgraded connection needs a connection of its own",
            Self::Bulk => "the body is long or of unknown length, which TLS carries to another machine with less CPU time",
            Self::KeptTls => "kept TLS connections to the node carry complete requests with less CPU time",
            Self::Grpc => "gRPC needs HTTP/2 up to the function",
            Self::Trailers => "the request announces trailers (`Trailer`), which messages in memory do not have",
            Self::CallerNoIdentity => "the caller has no certificate: its calls go to the gateway over HTTP",
            Self::NoIdentity => "the instance has no certificate; its log has the cause",
            Self::UdpBlocked => "the instance did not answer over UDP recently; calls retry it from time to time",
            Self::NoTls => "caller and instance do not support TLS over TCP",
            Self::ShortLink => "the link has carried too little to be worth the search for a direct connection",
            Self::Searching => "the search for a direct connection is still running",
            Self::NoOffer => "the peer has not sent its candidates in time: it may be an older version, or busy",
            Self::NoPort => "this worker has no port to search from",
            Self::NoDirectRoute => "no direct connection was found: NATs or firewalls between the two workers drop their packets",
            Self::PeerGaveUp => "the peer has given up the search for a direct connection",
            Self::DirectUnusable => "a direct connection was found, but its handshake failed",
            Self::NeedsAdapter => "the destination needs TLS or an adapter, which the egress proxy has",
            Self::NoWarmSocket => "the pool had no warm connection to the destination at that moment",
            Self::SocketKind => "the function's socket is not a TCP socket of the address's family",
            Self::SocketUsed => "the function's socket is bound, or was used before",
            Self::SocketFlags => "the function's socket has a flag that no new socket has",
            Self::SocketOption => "the function's socket has an option that cannot be copied to another one",
            Self::SocketShared => "another descriptor refers to the function's socket",
            Self::SocketWatched => "an epoll instance watches the function's socket",
            Self::TooManyDescriptors => "the function has too many open descriptors to inspect",
            Self::NotInspectable => "the function's socket could not be inspected: its thread has ended, or the kernel does not allow it",
        }
    }

    /// Returns the paths that the obstacle excludes.
    pub const fn against(self) -> &'static [Path] {
        match self {
            Self::Excluded => &[Path::Loopback, Path::Quic, Path::Tls, Path::Http, Path::Relay],
            Self::OtherNode => &[Path::Shm],
            Self::NoDomain => &[Path::Shm],
            Self::OtherDomain => &[Path::Shm],
            Self::CallerNoEndpoint => &[Path::Shm],
            Self::NoEndpoint => &[Path::Shm],
            Self::OwnPort => &[Path::Shm],
            Self::NoRoom => &[Path::Shm],
            Self::Upgrade => &[Path::Shm, Path::Quic],
            Self::Bulk => &[Path::Quic],
            Self::KeptTls => &[Path::Quic],
            Self::Grpc => &[Path::Shm],
            Self::Trailers => &[Path::Shm],
            Self::CallerNoIdentity => &[Path::Quic, Path::Tls],
            Self::NoIdentity => &[Path::Quic, Path::Tls],
            Self::UdpBlocked => &[Path::Quic],
            Self::NoTls => &[Path::Tls],
            Self::ShortLink => &[Path::Punch],
            Self::Searching => &[Path::Punch],
            Self::NoOffer => &[Path::Punch],
            Self::NoPort => &[Path::Punch],
            Self::NoDirectRoute => &[Path::Punch],
            Self::PeerGaveUp => &[Path::Punch],
            Self::DirectUnusable => &[Path::Punch],
            Self::NeedsAdapter => &[Path::Pool],
            Self::NoWarmSocket => &[Path::Pool],
            Self::SocketKind => &[Path::Pool],
            Self::SocketUsed => &[Path::Pool],
            Self::SocketFlags => &[Path::Pool],
            Self::SocketOption => &[Path::Pool],
            Self::SocketShared => &[Path::Pool],
            Self::SocketWatched => &[Path::Pool],
            Self::TooManyDescriptors => &[Path::Pool],
            Self::NotInspectable => &[Path::Pool],
        }
    }
}

/// Maximum number of paths of one kind of traffic.
pub(crate) const MAX_CANDIDATES: usize = 5;
