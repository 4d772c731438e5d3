//! Table of the socket options that are compared, and of those that are ignored.

use super::{CopyPolicy, OptionEntry, common_option, rare_option};

/// Setting it also sets `SO_PRIORITY` (ip(7)).
pub(super) const TOS: OptionEntry =
    common_option("IP_TOS", libc::IPPROTO_IP, libc::IP_TOS, CopyPolicy::Copy);

/// Options of an IPv4 socket.
const IPV4_OPTIONS: &[OptionEntry] = &[
    common_option(
        "TCP_NODELAY",
        libc::IPPROTO_TCP,
        libc::TCP_NODELAY,
        CopyPolicy::Copy,
    ),
    common_option(
        "SO_KEEPALIVE",
        libc::SOL_SOCKET,
        libc::SO_KEEPALIVE,
        CopyPolicy::Copy,
    ),
    common_option(
        "TCP_KEEPIDLE",
        libc::IPPROTO_TCP,
        libc::TCP_KEEPIDLE,
        CopyPolicy::Copy,
    ),
    common_option(
        "TCP_KEEPINTVL",
        libc::IPPROTO_TCP,
        libc::TCP_KEEPINTVL,
        CopyPolicy::Copy,
    ),
    common_option(
        "TCP_KEEPCNT",
        libc::IPPROTO_TCP,
        libc::TCP_KEEPCNT,
        CopyPolicy::Copy,
    ),
    common_option(
        "TCP_USER_TIMEOUT",
        libc::IPPROTO_TCP,
        libc::TCP_USER_TIMEOUT,
        CopyPolicy::Copy,
    ),
    rare_option(
        "TCP_QUICKACK",
        libc::IPPROTO_TCP,
        libc::TCP_QUICKACK,
        CopyPolicy::Copy,
    ),
    rare_option(
        "TCP_CORK",
        libc::IPPROTO_TCP,
        libc::TCP_CORK,
        CopyPolicy::Copy,
    ),
    rare_option(
        "TCP_NOTSENT_LOWAT",
        libc::IPPROTO_TCP,
        libc::TCP_NOTSENT_LOWAT,
        CopyPolicy::Copy,
    ),
    rare_option(
        "TCP_INQ",
        libc::IPPROTO_TCP,
        libc::TCP_INQ,
        CopyPolicy::Copy,
    ),
    rare_option(
        "TCP_MAXSEG",
        libc::IPPROTO_TCP,
        libc::TCP_MAXSEG,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "TCP_CONGESTION",
        libc::IPPROTO_TCP,
        libc::TCP_CONGESTION,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "TCP_FASTOPEN_CONNECT",
        libc::IPPROTO_TCP,
        libc::TCP_FASTOPEN_CONNECT,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "TCP_DEFER_ACCEPT",
        libc::IPPROTO_TCP,
        libc::TCP_DEFER_ACCEPT,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "TCP_WINDOW_CLAMP",
        libc::IPPROTO_TCP,
        libc::TCP_WINDOW_CLAMP,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "TCP_ULP",
        libc::IPPROTO_TCP,
        libc::TCP_ULP,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "TCP_SYNCNT",
        libc::IPPROTO_TCP,
        libc::TCP_SYNCNT,
        CopyPolicy::Copy,
    ),
    rare_option(
        "TCP_LINGER2",
        libc::IPPROTO_TCP,
        libc::TCP_LINGER2,
        CopyPolicy::Copy,
    ),
    common_option(
        "SO_RCVTIMEO",
        libc::SOL_SOCKET,
        libc::SO_RCVTIMEO,
        CopyPolicy::Copy,
    ),
    common_option(
        "SO_SNDTIMEO",
        libc::SOL_SOCKET,
        libc::SO_SNDTIMEO,
        CopyPolicy::Copy,
    ),
    common_option(
        "SO_LINGER",
        libc::SOL_SOCKET,
        libc::SO_LINGER,
        CopyPolicy::Copy,
    ),
    common_option(
        "SO_RCVBUF",
        libc::SOL_SOCKET,
        libc::SO_RCVBUF,
        CopyPolicy::CopyHalved,
    ),
    common_option(
        "SO_SNDBUF",
        libc::SOL_SOCKET,
        libc::SO_SNDBUF,
        CopyPolicy::CopyHalved,
    ),
    rare_option(
        "SO_RCVLOWAT",
        libc::SOL_SOCKET,
        libc::SO_RCVLOWAT,
        CopyPolicy::Copy,
    ),
    rare_option(
        "SO_OOBINLINE",
        libc::SOL_SOCKET,
        libc::SO_OOBINLINE,
        CopyPolicy::Copy,
    ),
    rare_option(
        "SO_ZEROCOPY",
        libc::SOL_SOCKET,
        libc::SO_ZEROCOPY,
        CopyPolicy::Copy,
    ),
    rare_option(
        "SO_TIMESTAMP",
        libc::SOL_SOCKET,
        libc::SO_TIMESTAMP,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "SO_TIMESTAMPING",
        libc::SOL_SOCKET,
        libc::SO_TIMESTAMPING,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "SO_BINDTODEVICE",
        libc::SOL_SOCKET,
        libc::SO_BINDTODEVICE,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "SO_MARK",
        libc::SOL_SOCKET,
        libc::SO_MARK,
        CopyPolicy::Refuse,
    ),
    common_option(
        "SO_REUSEADDR",
        libc::SOL_SOCKET,
        libc::SO_REUSEADDR,
        CopyPolicy::Copy,
    ),
    common_option(
        "SO_REUSEPORT",
        libc::SOL_SOCKET,
        libc::SO_REUSEPORT,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "SO_DONTROUTE",
        libc::SOL_SOCKET,
        libc::SO_DONTROUTE,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "SO_BUSY_POLL",
        libc::SOL_SOCKET,
        libc::SO_BUSY_POLL,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "SO_PEEK_OFF",
        libc::SOL_SOCKET,
        libc::SO_PEEK_OFF,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "SO_TIMESTAMPNS",
        libc::SOL_SOCKET,
        libc::SO_TIMESTAMPNS,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "SO_MAX_PACING_RATE",
        libc::SOL_SOCKET,
        libc::SO_MAX_PACING_RATE,
        CopyPolicy::Copy,
    ),
    // the same number reads as SO_GET_FILTER
    rare_option(
        "SO_ATTACH_FILTER",
        libc::SOL_SOCKET,
        libc::SO_ATTACH_FILTER,
        CopyPolicy::Refuse,
    ),
    TOS,
    rare_option(
        "SO_PRIORITY",
        libc::SOL_SOCKET,
        libc::SO_PRIORITY,
        CopyPolicy::CopyAfterTos,
    ),
    rare_option("IP_TTL", libc::IPPROTO_IP, libc::IP_TTL, CopyPolicy::Copy),
    common_option(
        "IP_RECVERR",
        libc::IPPROTO_IP,
        libc::IP_RECVERR,
        CopyPolicy::Copy,
    ),
    rare_option(
        "IP_TRANSPARENT",
        libc::IPPROTO_IP,
        libc::IP_TRANSPARENT,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "IP_FREEBIND",
        libc::IPPROTO_IP,
        libc::IP_FREEBIND,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "IP_BIND_ADDRESS_NO_PORT",
        libc::IPPROTO_IP,
        libc::IP_BIND_ADDRESS_NO_PORT,
        CopyPolicy::Refuse,
    ),
    common_option(
        "IP_MTU_DISCOVER",
        libc::IPPROTO_IP,
        libc::IP_MTU_DISCOVER,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "IP_MINTTL",
        libc::IPPROTO_IP,
        libc::IP_MINTTL,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "IP_OPTIONS",
        libc::IPPROTO_IP,
        libc::IP_OPTIONS,
        CopyPolicy::Refuse,
    ),
];

/// Additional options of an IPv6 socket.
const IPV6_OPTIONS: &[OptionEntry] = &[
    common_option(
        "IPV6_V6ONLY",
        libc::IPPROTO_IPV6,
        libc::IPV6_V6ONLY,
        CopyPolicy::Refuse,
    ),
    rare_option(
        "IPV6_TCLASS",
        libc::IPPROTO_IPV6,
        libc::IPV6_TCLASS,
        CopyPolicy::Copy,
    ),
    rare_option(
        "IPV6_UNICAST_HOPS",
        libc::IPPROTO_IPV6,
        libc::IPV6_UNICAST_HOPS,
        CopyPolicy::Copy,
    ),
    common_option(
        "IPV6_RECVERR",
        libc::IPPROTO_IPV6,
        libc::IPV6_RECVERR,
        CopyPolicy::Copy,
    ),
];

/// Options without effect on a TCP socket, or only for datagrams.
const IGNORED_OPTIONS: &[(i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
    (libc::SOL_SOCKET, libc::SO_PASSCRED),
    (libc::SOL_UDP, libc::UDP_GRO),
    (libc::SOL_UDP, libc::UDP_SEGMENT),
    (libc::IPPROTO_IP, libc::IP_PKTINFO),
    (libc::IPPROTO_IP, libc::IP_RECVTOS),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
];

/// Returns levels and numbers of options that the seccomp filter does not report, because they are
/// always or never compared.
pub(crate) fn unreported_options() -> impl Iterator<Item = (i32, i32)> {
    let usual = options_for(true)
        .filter(|entry| entry.common)
        .map(|entry| (entry.level, entry.number));
    usual.chain(IGNORED_OPTIONS.iter().copied())
}

pub(super) fn options_for(v6: bool) -> impl Iterator<Item = &'static OptionEntry> {
    IPV4_OPTIONS
        .iter()
        .chain(if v6 { IPV6_OPTIONS } else { &[] })
}
