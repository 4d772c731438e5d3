//! Options that a program has set on its own socket, to be set on the one that replaces it.

mod table;

use std::io;
use std::os::fd::AsFd;

use super::raw_options::{get_option, set_option};
pub(crate) use table::unreported_options;
use table::{TOS, options_for};

/// Treatment of an option that differs from a new socket's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyPolicy {
    /// Sets the value on the other socket.
    Copy,
    /// Sets half the value, because the kernel doubles it (socket(7), `SO_RCVBUF`).
    CopyHalved,
    /// Sets the value also if only [`TOS`] differs, because setting that changes it.
    CopyAfterTos,
    /// Refuses any replacement: the option had to be set before connecting, or belongs to the
    /// program alone.
    Refuse,
}

struct OptionEntry {
    name: &'static str,
    level: i32,
    number: i32,
    policy: CopyPolicy,
    /// Set for options that programs use often: always compared. Others are compared once a program
    /// has set such an option.
    common: bool,
}

const fn rare_option(name: &'static str, level: i32, number: i32, care: CopyPolicy) -> OptionEntry {
    OptionEntry {
        name,
        level,
        number,
        policy: care,
        common: false,
    }
}

const fn common_option(
    name: &'static str,
    level: i32,
    number: i32,
    care: CopyPolicy,
) -> OptionEntry {
    OptionEntry {
        name,
        level,
        number,
        policy: care,
        common: true,
    }
}

/// Value of an option; the longest here is a time of two words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct OptionValue {
    octets: [u8; 16],
    length: u8,
}

impl OptionValue {
    /// Reads an option. An unreadable one gets a length that no value has.
    fn read_from(socket: impl AsFd, entry: &OptionEntry) -> Self {
        let mut octets = [0; 16];
        let length = get_option(socket, entry.level, entry.number, &mut octets);
        Self {
            octets,
            length: length.map_or(u8::MAX, |length| length as u8),
        }
    }
}

/// Option values of a TCP socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketOptions {
    values: Vec<OptionValue>,
    v6: bool,
}

/// An option that differs from a new socket's and can be copied.
#[derive(Debug, Clone, Copy)]
pub struct OptionChange {
    entry: &'static OptionEntry,
    value: OptionValue,
}

impl std::fmt::Debug for OptionEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl SocketOptions {
    /// Reads the options of an `AF_INET6` socket if `v6`, else of an `AF_INET` one.
    pub fn read_from(socket: impl AsFd, v6: bool) -> Self {
        Self {
            values: options_for(v6)
                .map(|entry| OptionValue::read_from(&socket, entry))
                .collect(),
            v6,
        }
    }

    /// Compares a socket with these defaults, and returns the changes for its replacement.
    ///
    /// `all` also compares rarely set options, one system call each. It is needed once a program
    /// has set one
    /// ([`SeccompListener::saw_rare_option`](crate::seccomp::listener::SeccompListener::saw_rare_option)).
    ///
    /// # Errors
    /// Returns the name of an option that cannot be copied.
    pub fn changes_on(
        &self,
        socket: impl AsFd,
        all: bool,
    ) -> Result<Vec<OptionChange>, &'static str> {
        let mut changes = Vec::new();
        for (entry, default) in options_for(self.v6)
            .zip(&self.values)
            .filter(|(entry, _)| all || entry.common)
        {
            // Defaults are read from a new socket of the same namespace, since sysctls change them.
            let value = OptionValue::read_from(&socket, entry);
            let after = entry.policy == CopyPolicy::CopyAfterTos
                && changes
                    .iter()
                    .any(|change: &OptionChange| change.option_name() == TOS.name);
            match entry.policy {
                _ if value == *default && !after => {}
                CopyPolicy::Copy | CopyPolicy::CopyHalved | CopyPolicy::CopyAfterTos
                    if value.length != u8::MAX =>
                {
                    changes.push(OptionChange { entry, value })
                }
                _ => return Err(entry.name),
            }
        }
        Ok(changes)
    }
}

impl OptionChange {
    /// Sets the option on another socket.
    ///
    /// # Errors
    /// Fails when the socket rejects it.
    pub fn apply_to(&self, socket: impl AsFd) -> io::Result<()> {
        let Self { entry, value } = self;
        match entry.policy {
            CopyPolicy::CopyHalved => {
                let [a, b, c, d, ..] = value.octets;
                let half = i32::from_ne_bytes([a, b, c, d]) / 2;
                // The kernel doubles the value again, so both sockets have the same size.
                set_option(socket, entry.level, entry.number, &half.to_ne_bytes())
            }
            _ => set_option(
                socket,
                entry.level,
                entry.number,
                &value.octets[..usize::from(value.length)],
            ),
        }
    }

    /// Returns the option's name, as in the manual.
    pub fn option_name(&self) -> &'static str {
        self.entry.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, socket, sockopt};
    use std::time::Duration;

    fn new_socket(v6: bool) -> std::os::fd::OwnedFd {
        let family = if v6 {
            AddressFamily::INET6
        } else {
            AddressFamily::INET
        };
        socket(family, SocketType::STREAM, None).unwrap()
    }

    #[test]
    fn new_sockets_have_no_changes() {
        for v6 in [false, true] {
            let defaults = SocketOptions::read_from(new_socket(v6), v6);
            assert!(
                defaults
                    .changes_on(new_socket(v6), true)
                    .unwrap()
                    .is_empty()
            );
            let unread: Vec<_> = options_for(v6)
                .zip(&defaults.values)
                .filter(|(_, value)| value.length == u8::MAX)
                .collect();
            assert!(unread.is_empty(), "{unread:?}");
        }
    }

    #[test]
    fn changed_options_are_copied() {
        let (original, replacement) = (new_socket(false), new_socket(false));
        sockopt::set_tcp_nodelay(&original, true).unwrap();
        sockopt::set_socket_keepalive(&original, true).unwrap();
        sockopt::set_tcp_keepidle(&original, Duration::from_secs(7)).unwrap();
        sockopt::set_socket_linger(&original, Some(Duration::from_secs(3))).unwrap();
        sockopt::set_socket_recv_buffer_size(&original, 20_000).unwrap();
        sockopt::set_socket_timeout(
            &original,
            sockopt::Timeout::Recv,
            Some(Duration::from_millis(1500)),
        )
        .unwrap();
        sockopt::set_ip_tos(&original, 0x20).unwrap();
        let new = SocketOptions::read_from(&replacement, false);
        let changes = new.changes_on(&original, true).unwrap();
        assert_eq!(changes.len(), 8, "{changes:?}");
        changes
            .iter()
            .for_each(|change| change.apply_to(&replacement).unwrap());
        assert!(
            SocketOptions::read_from(&original, false)
                .changes_on(&replacement, true)
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn rare_options_are_checked_only_on_request() {
        let (original, new) = (
            new_socket(false),
            SocketOptions::read_from(new_socket(false), false),
        );
        sockopt::set_tcp_congestion(&original, "reno").unwrap();
        sockopt::set_tcp_nodelay(&original, true).unwrap();
        assert_eq!(new.changes_on(&original, false).unwrap().len(), 1);
        assert_eq!(
            new.changes_on(&original, true).unwrap_err(),
            "TCP_CONGESTION"
        );
        let unreported: Vec<_> = unreported_options().collect();
        let compared: Vec<_> = options_for(true)
            .filter(|entry| !entry.common)
            .map(|entry| (entry.level, entry.number))
            .collect();
        assert!(
            compared.iter().all(|option| !unreported.contains(option)),
            "an option is neither reported nor compared"
        );
    }

    #[test]
    fn copying_ip_tos_keeps_the_priority() {
        for priority in [0, 4] {
            let (original, replacement) = (new_socket(false), new_socket(false));
            sockopt::set_ip_tos(&original, 0x48).unwrap(); // sets the priority to 2
            set_option(
                &original,
                libc::SOL_SOCKET,
                libc::SO_PRIORITY,
                &i32::to_ne_bytes(priority),
            )
            .unwrap();
            let new = SocketOptions::read_from(&replacement, false);
            new.changes_on(&original, true)
                .unwrap()
                .iter()
                .for_each(|change| change.apply_to(&replacement).unwrap());
            assert_eq!(
                SocketOptions::read_from(&original, false),
                SocketOptions::read_from(&replacement, false),
                "{priority}"
            );
        }
    }

    #[test]
    fn an_option_that_cannot_be_copied_is_named() {
        let original = new_socket(true);
        sockopt::set_ipv6_v6only(&original, true).unwrap();
        assert_eq!(
            SocketOptions::read_from(new_socket(true), true)
                .changes_on(&original, true)
                .unwrap_err(),
            "IPV6_V6ONLY"
        );
        let original = new_socket(false);
        sockopt::set_tcp_congestion(&original, "reno").unwrap();
        assert_eq!(
            SocketOptions::read_from(new_socket(false), false)
                .changes_on(&original, true)
                .unwrap_err(),
            "TCP_CONGESTION"
        );
    }
}
