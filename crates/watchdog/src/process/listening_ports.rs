//! TCP ports on which processes of a group listen, from `/proc` (proc_pid_net(5), proc_pid_fd(5)).
//!
//! Only for messages: a server on a port that no one expects is the most frequent mistake of a new
//! function.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use rustix::process::{Pid, geteuid};

/// States TCP_LISTEN and TCP_ESTABLISHED in the tables of `/proc/net` (`net/tcp_states.h`).
const LISTEN_STATE: &str = "0A";
const ESTABLISHED_STATE: &str = "01";

/// Ports of a group of processes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ListeningPorts {
    /// Ports of all processes in the group.
    pub(crate) of_group: BTreeSet<u16>,
    /// Ports of its leader.
    pub(crate) of_leader: BTreeSet<u16>,
    /// Ports of the group to which no connection exists.
    pub(crate) idle: BTreeSet<u16>,
}

/// TCP sockets of this network namespace.
#[derive(Debug, Default)]
struct SocketTable {
    /// Port by inode.
    listeners: HashMap<u64, u16>,
    /// Local ports of connections.
    connected: BTreeSet<u16>,
    /// Remote ports of connections that another user has opened: the node, for the gateway.
    connected_by_others: BTreeSet<u16>,
}

/// Socket of a table in `/proc/net`.
#[derive(Debug, PartialEq, Eq)]
struct SocketLine<'a> {
    state: &'a str,
    local_port: u16,
    remote_port: u16,
    uid: u32,
    inode: u64,
}

/// Reads the ports of the group that `leader` leads. Empty where `/proc` cannot be read. Takes
/// about a millisecond.
pub(super) fn read_ports(leader: Pid) -> ListeningPorts {
    let mut ports = ListeningPorts::default();
    let sockets = SocketTable::read();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if process_group(&entry.path()) != Some(leader.as_raw_nonzero().get()) {
            continue;
        }
        let found = process_ports(&entry.path(), &sockets.listeners);
        if entry.file_name().to_str() == Some(&leader.to_string()) {
            ports.of_leader.clone_from(&found);
        }
        ports.of_group.extend(found);
    }
    ports.idle = &ports.of_group - &sockets.connected;
    ports
}

/// Returns whether the gateway has a connection to a local port. Connections of the instance's own
/// user do not count: it could delay its stop with them. False where `/proc` cannot be read.
pub(crate) fn is_connected_by_gateway(port: u16) -> bool {
    SocketTable::read().connected_by_others.contains(&port)
}

/// Returns the group of a process, from proc_pid_stat(5). The name before it may hold anything.
fn process_group(process: &Path) -> Option<i32> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(2)?.parse().ok()
}

/// Returns the ports of one process.
fn process_ports(process: &Path, listeners: &HashMap<u64, u16>) -> BTreeSet<u16> {
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten();
    let targets = descriptors
        .flatten()
        .filter_map(|fd| fs::read_link(fd.path()).ok());
    targets
        .filter_map(|target| socket_inode(target.to_str()?))
        .filter_map(|inode| listeners.get(&inode).copied())
        .collect()
}

impl SocketTable {
    fn read() -> Self {
        let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
        let texts = tables.map(|table| fs::read_to_string(table).unwrap_or_default());
        let lines = texts.iter().flat_map(|text| text.lines());
        Self::from_lines(lines, geteuid().as_raw())
    }

    fn from_lines<'a>(lines: impl Iterator<Item = &'a str>, own_uid: u32) -> Self {
        let (mut sockets, mut of_others) = (Self::default(), Vec::new());
        for line in lines.filter_map(parse_line) {
            match line.state {
                LISTEN_STATE => drop(sockets.listeners.insert(line.inode, line.local_port)),
                ESTABLISHED_STATE => {
                    sockets.connected.insert(line.local_port);
                    if line.uid != own_uid {
                        of_others.push((line.local_port, line.remote_port));
                    }
                }
                _ => {}
            }
        }
        // The gateway also accepts connections here, whose remote ports the tenant chooses.
        let listening: BTreeSet<_> = sockets.listeners.values().copied().collect();
        let opened = of_others
            .into_iter()
            .filter(|(local, _)| !listening.contains(local));
        sockets.connected_by_others = opened.map(|(_, remote)| remote).collect();
        sockets
    }
}

/// Parses a line of a table. `None` for the heading.
fn parse_line(line: &str) -> Option<SocketLine<'_>> {
    let mut fields = line.split_ascii_whitespace();
    let local = fields.nth(1)?;
    let remote = fields.next()?;
    let state = fields.next()?;
    let uid = fields.nth(3)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some(SocketLine {
        state,
        local_port: parse_port(local)?,
        remote_port: parse_port(remote)?,
        uid,
        inode,
    })
}

/// Parses the port behind an address, in hexadecimal digits.
fn parse_port(addr: &str) -> Option<u16> {
    u16::from_str_radix(addr.rsplit_once(':')?.1, 16).ok()
}

fn socket_inode(target: &str) -> Option<u64> {
    target
        .strip_prefix("socket:[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_testkit::lab::NetworkLab;
    use rustix::process::{getpgrp, getpid};
    use std::net::TcpListener;

    /// In a namespace of its own: on the machine, a connection of another test may have the port of
    /// the idle listener at another address.
    #[test]
    fn own_listeners_are_found_and_connections_are_not() {
        let mut lab = NetworkLab::new().unwrap();
        lab.add_node("instance").unwrap().enter(check_own_ports);
    }

    fn check_own_ports() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let found = process_ports(Path::new("/proc/self"), &SocketTable::read().listeners);
        assert!(found.contains(&port), "{found:?}");
        assert!(!found.contains(&client.local_addr().unwrap().port()));
        let idle = TcpListener::bind("127.0.0.1:0").unwrap();
        let group = read_ports(getpgrp());
        assert!(group.of_group.contains(&port), "{group:?}");
        assert!(!group.idle.contains(&port), "it has a connection");
        assert!(!is_connected_by_gateway(port), "the connection is its own");
        assert!(group.idle.contains(&idle.local_addr().unwrap().port()));
        assert_eq!(group.of_leader.contains(&port), getpid() == getpgrp());
    }

    #[test]
    fn connections_of_other_users_are_the_gateways() {
        let line = |state: &str, uid: u32| {
            format!("0: 0100007F:D431 0100007F:1F90 {state} 0:0 00:0 0 {uid} 0 4711 1 0000")
        };
        let own_uid = geteuid().as_raw();
        for (state, uid, is_gateway) in [
            (ESTABLISHED_STATE, own_uid + 1, true),
            (ESTABLISHED_STATE, own_uid, false),
            ("08", own_uid + 1, false),
        ] {
            let text = line(state, uid);
            let sockets = SocketTable::from_lines(text.lines(), own_uid);
            assert_eq!(
                sockets.connected_by_others.contains(&8080),
                is_gateway,
                "{text}"
            );
            let accepted = "0: 00000000:D431 00000000:0000 0A 0:0 00:0 0 0 0 1 1 0000";
            let sockets = SocketTable::from_lines(text.lines().chain([accepted]), own_uid);
            assert!(
                sockets.connected_by_others.is_empty(),
                "it was accepted here"
            );
        }
    }

    #[test]
    fn lines_of_the_table_are_parsed() {
        let line = "   0: 00000000:1F90 0100007F:D431 0A 00000000:00000000 00:00000000 00000000 1000 0 4711 1 0000";
        let wanted = SocketLine {
            state: "0A",
            local_port: 8080,
            remote_port: 54321,
            uid: 1000,
            inode: 4711,
        };
        assert_eq!(parse_line(line), Some(wanted));
        assert_eq!(parse_line("  sl  local_address rem_address   st"), None);
    }
}
