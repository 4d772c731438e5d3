//! What a program has set on a socket of its own, to be set on another one in its place.

use std::io;
use std::os::fd::AsFd;

use super::raw::{get, set};

/// What becomes of an option that differs from a new socket's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Care {
    /// It is set on the other socket, too.
    Copy,
    /// The same, and the kernel doubles what it is told (socket(7), `SO_RCVBUF`).
    CopyHalf,
    /// The same, also where it does not differ if [`TOS`] does: that one changes it.
    After,
    /// It had to be there when the connection was made, or belongs to the program alone: no other socket will do.
    Refuse,
}

struct Entry {
    name: &'static str,
    level: i32,
    number: i32,
    care: Care,
    /// Whether programs set it all the time: it is looked at always. The others are where somebody has set such a one.
    usual: bool,
}

const fn entry(name: &'static str, level: i32, number: i32, care: Care) -> Entry {
    Entry { name, level, number, care, usual: false }
}

const fn usual(name: &'static str, level: i32, number: i32, care: Care) -> Entry {
    Entry { name, level, number, care, usual: true }
}

/// Setting it sets `SO_PRIORITY`, too (ip(7)).
const TOS: Entry = usual("IP_TOS", libc::IPPROTO_IP, libc::IP_TOS, Care::Copy);

/// Ways of an IPv4 socket.
const V4: &[Entry] = &[
    usual("TCP_NODELAY", libc::IPPROTO_TCP, libc::TCP_NODELAY, Care::Copy),
    usual("SO_KEEPALIVE", libc::SOL_SOCKET, libc::SO_KEEPALIVE, Care::Copy),
    usual("TCP_KEEPIDLE", libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, Care::Copy),
    usual("TCP_KEEPINTVL", libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, Care::Copy),
    usual("TCP_KEEPCNT", libc::IPPROTO_TCP, libc::TCP_KEEPCNT, Care::Copy),
    usual("TCP_USER_TIMEOUT", libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, Care::Copy),
    entry("TCP_QUICKACK", libc::IPPROTO_TCP, libc::TCP_QUICKACK, Care::Copy),
    entry("TCP_CORK", libc::IPPROTO_TCP, libc::TCP_CORK, Care::Copy),
    entry("TCP_NOTSENT_LOWAT", libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, Care::Copy),
    entry("TCP_INQ", libc::IPPROTO_TCP, libc::TCP_INQ, Care::Copy),
    entry("TCP_MAXSEG", libc::IPPROTO_TCP, libc::TCP_MAXSEG, Care::Refuse),
    entry("TCP_CONGESTION", libc::IPPROTO_TCP, libc::TCP_CONGESTION, Care::Refuse),
    entry("TCP_FASTOPEN_CONNECT", libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, Care::Refuse),
    entry("TCP_DEFER_ACCEPT", libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, Care::Refuse),
    entry("TCP_WINDOW_CLAMP", libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, Care::Refuse),
    entry("TCP_ULP", libc::IPPROTO_TCP, libc::TCP_ULP, Care::Refuse),
    entry("TCP_SYNCNT", libc::IPPROTO_TCP, libc::TCP_SYNCNT, Care::Copy),
    entry("TCP_LINGER2", libc::IPPROTO_TCP, libc::TCP_LINGER2, Care::Copy),
    usual("SO_RCVTIMEO", libc::SOL_SOCKET, libc::SO_RCVTIMEO, Care::Copy),
    usual("SO_SNDTIMEO", libc::SOL_SOCKET, libc::SO_SNDTIMEO, Care::Copy),
    usual("SO_LINGER", libc::SOL_SOCKET, libc::SO_LINGER, Care::Copy),
    usual("SO_RCVBUF", libc::SOL_SOCKET, libc::SO_RCVBUF, Care::CopyHalf),
    usual("SO_SNDBUF", libc::SOL_SOCKET, libc::SO_SNDBUF, Care::CopyHalf),
    entry("SO_RCVLOWAT", libc::SOL_SOCKET, libc::SO_RCVLOWAT, Care::Copy),
    entry("SO_OOBINLINE", libc::SOL_SOCKET, libc::SO_OOBINLINE, Care::Copy),
    entry("SO_ZEROCOPY", libc::SOL_SOCKET, libc::SO_ZEROCOPY, Care::Copy),
    entry("SO_TIMESTAMP", libc::SOL_SOCKET, libc::SO_TIMESTAMP, Care::Refuse),
    entry("SO_TIMESTAMPING", libc::SOL_SOCKET, libc::SO_TIMESTAMPING, Care::Refuse),
    entry("SO_BINDTODEVICE", libc::SOL_SOCKET, libc::SO_BINDTODEVICE, Care::Refuse),
    entry("SO_MARK", libc::SOL_SOCKET, libc::SO_MARK, Care::Refuse),
    usual("SO_REUSEADDR", libc::SOL_SOCKET, libc::SO_REUSEADDR, Care::Copy),
    usual("SO_REUSEPORT", libc::SOL_SOCKET, libc::SO_REUSEPORT, Care::Refuse),
    entry("SO_DONTROUTE", libc::SOL_SOCKET, libc::SO_DONTROUTE, Care::Refuse),
    entry("SO_BUSY_POLL", libc::SOL_SOCKET, libc::SO_BUSY_POLL, Care::Refuse),
    entry("SO_PEEK_OFF", libc::SOL_SOCKET, libc::SO_PEEK_OFF, Care::Refuse),
    entry("SO_TIMESTAMPNS", libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, Care::Refuse),
    entry("SO_MAX_PACING_RATE", libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, Care::Copy),
    entry("SO_ATTACH_FILTER", libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, Care::Refuse), // reading it is SO_GET_FILTER
    TOS,
    entry("SO_PRIORITY", libc::SOL_SOCKET, libc::SO_PRIORITY, Care::After),
    entry("IP_TTL", libc::IPPROTO_IP, libc::IP_TTL, Care::Copy),
    usual("IP_RECVERR", libc::IPPROTO_IP, libc::IP_RECVERR, Care::Copy),
    entry("IP_TRANSPARENT", libc::IPPROTO_IP, libc::IP_TRANSPARENT, Care::Refuse),
    entry("IP_FREEBIND", libc::IPPROTO_IP, libc::IP_FREEBIND, Care::Refuse),
    entry("IP_BIND_ADDRESS_NO_PORT", libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, Care::Refuse),
    usual("IP_MTU_DISCOVER", libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, Care::Refuse),
    entry("IP_MINTTL", libc::IPPROTO_IP, libc::IP_MINTTL, Care::Refuse),
    entry("IP_OPTIONS", libc::IPPROTO_IP, libc::IP_OPTIONS, Care::Refuse),
];

/// What an IPv6 socket has beside them.
const V6: &[Entry] = &[
    usual("IPV6_V6ONLY", libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, Care::Refuse),
    entry("IPV6_TCLASS", libc::IPPROTO_IPV6, libc::IPV6_TCLASS, Care::Copy),
    entry("IPV6_UNICAST_HOPS", libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, Care::Copy),
    usual("IPV6_RECVERR", libc::IPPROTO_IPV6, libc::IPV6_RECVERR, Care::Copy),
];

/// Options that mean nothing on a TCP socket, or nothing that is looked at: what comes with datagrams.
const INDIFFERENT: &[(i32, i32)] = &[
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

/// Levels and numbers of the options that may be set without anybody being told, because they are always looked at, or never.
pub(crate) fn untold() -> impl Iterator<Item = (i32, i32)> {
    let usual = table(true).filter(|entry| entry.usual).map(|entry| (entry.level, entry.number));
    usual.chain(INDIFFERENT.iter().copied())
}

fn table(v6: bool) -> impl Iterator<Item = &'static Entry> {
    V4.iter().chain(if v6 { V6 } else { &[] })
}

/// An option's octets; the longest here is a time in two words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Value {
    octets: [u8; 16],
    length: u8,
}

impl Value {
    /// What cannot be read has a length that nothing else has.
    fn of(socket: impl AsFd, entry: &Entry) -> Self {
        let mut octets = [0; 16];
        let length = get(socket, entry.level, entry.number, &mut octets);
        Self { octets, length: length.map_or(u8::MAX, |length| length as u8) }
    }
}

/// What a TCP socket is set to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    values: Vec<Value>,
    v6: bool,
}

/// An option that differs from a new socket's, and can be set.
#[derive(Debug, Clone, Copy)]
pub struct Change {
    entry: &'static Entry,
    value: Value,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Options {
    /// Those of a socket of the family `AF_INET6` if `v6`, else of `AF_INET`.
    pub fn of(socket: impl AsFd, v6: bool) -> Self {
        Self { values: table(v6).map(|entry| Value::of(&socket, entry)).collect(), v6 }
    }

    /// What has been set on a socket, where these are what a new one has: to be set on the one that takes its place. `all`: somebody has set an option
    /// that programs seldom set ([`Listener::has_heard_of_odd_options`](crate::seccomp::listener::Listener::has_heard_of_odd_options)), so each is
    /// looked at: that is a system call.
    ///
    /// # Errors
    /// The name of an option for which no other socket will do.
    pub fn changes(&self, socket: impl AsFd, all: bool) -> Result<Vec<Change>, &'static str> {
        let mut changes = Vec::new();
        for (entry, fresh) in table(self.v6).zip(&self.values).filter(|(entry, _)| all || entry.usual) {
            let value = Value::of(&socket, entry);
            let after = entry.care == Care::After && changes.iter().any(|change: &Change| change.name() == TOS.name);
            match entry.care {
                _ if value == *fresh && !after => {}
                Care::Copy | Care::CopyHalf | Care::After if value.length != u8::MAX => {
                    changes.push(Change { entry, value })
                }
                _ => return Err(entry.name),
            }
        }
        Ok(changes)
    }
}

impl Change {
    /// Sets it.
    ///
    /// # Errors
    /// When the socket does not take it.
    pub fn apply(&self, socket: impl AsFd) -> io::Result<()> {
        let Self { entry, value } = self;
        match entry.care {
            Care::CopyHalf => {
                let [a, b, c, d, ..] = value.octets;
                let half = i32::from_ne_bytes([a, b, c, d]) / 2;
                set(socket, entry.level, entry.number, &half.to_ne_bytes())
            }
            _ => set(socket, entry.level, entry.number, &value.octets[..usize::from(value.length)]),
        }
    }

    /// The option's name, as in the manual.
    pub fn name(&self) -> &'static str {
        self.entry.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, socket, sockopt};
    use std::time::Duration;

    fn fresh(v6: bool) -> std::os::fd::OwnedFd {
        let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        socket(family, SocketType::STREAM, None).unwrap()
    }

    #[test]
    fn new_sockets_do_not_differ() {
        for v6 in [false, true] {
            let known = Options::of(fresh(v6), v6);
            assert!(known.changes(fresh(v6), true).unwrap().is_empty());
            let unread: Vec<_> = table(v6).zip(&known.values).filter(|(_, value)| value.length == u8::MAX).collect();
            assert!(unread.is_empty(), "{unread:?}");
        }
    }

    #[test]
    fn what_was_set_is_set_again() {
        let (own, other) = (fresh(false), fresh(false));
        sockopt::set_tcp_nodelay(&own, true).unwrap();
        sockopt::set_socket_keepalive(&own, true).unwrap();
        sockopt::set_tcp_keepidle(&own, Duration::from_secs(7)).unwrap();
        sockopt::set_socket_linger(&own, Some(Duration::from_secs(3))).unwrap();
        sockopt::set_socket_recv_buffer_size(&own, 20_000).unwrap();
        sockopt::set_socket_timeout(&own, sockopt::Timeout::Recv, Some(Duration::from_millis(1500))).unwrap();
        sockopt::set_ip_tos(&own, 0x20).unwrap();
        let new = Options::of(&other, false);
        let changes = new.changes(&own, true).unwrap();
        assert_eq!(changes.len(), 8, "{changes:?}");
        changes.iter().for_each(|change| change.apply(&other).unwrap());
        assert!(Options::of(&own, false).changes(&other, true).unwrap().is_empty());
    }

    #[test]
    fn what_is_seldom_set_is_looked_at_only_where_it_was() {
        let (own, new) = (fresh(false), Options::of(fresh(false), false));
        sockopt::set_tcp_congestion(&own, "reno").unwrap();
        sockopt::set_tcp_nodelay(&own, true).unwrap();
        assert_eq!(new.changes(&own, false).unwrap().len(), 1);
        assert_eq!(new.changes(&own, true).unwrap_err(), "TCP_CONGESTION");
        let untold: Vec<_> = untold().collect();
        let looked_at: Vec<_> =
            table(true).filter(|entry| !entry.usual).map(|entry| (entry.level, entry.number)).collect();
        assert!(looked_at.iter().all(|option| !untold.contains(option)), "one is neither told nor looked at");
    }

    #[test]
    fn a_priority_is_not_lost_to_a_type_of_service() {
        for priority in [0, 4] {
            let (own, other) = (fresh(false), fresh(false));
            sockopt::set_ip_tos(&own, 0x48).unwrap(); // makes it 2
            set(&own, libc::SOL_SOCKET, libc::SO_PRIORITY, &i32::to_ne_bytes(priority)).unwrap();
            let new = Options::of(&other, false);
            new.changes(&own, true).unwrap().iter().for_each(|change| change.apply(&other).unwrap());
            assert_eq!(Options::of(&own, false), Options::of(&other, false), "{priority}");
        }
    }

    #[test]
    fn what_another_socket_cannot_have_is_named() {
        let own = fresh(true);
        sockopt::set_ipv6_v6only(&own, true).unwrap();
        assert_eq!(Options::of(fresh(true), true).changes(&own, true).unwrap_err(), "IPV6_V6ONLY");
        let own = fresh(false);
        sockopt::set_tcp_congestion(&own, "reno").unwrap();
        assert_eq!(Options::of(fresh(false), false).changes(&own, true).unwrap_err(), "TCP_CONGESTION");
    }
}
