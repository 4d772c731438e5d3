//! TCP ports on which processes of a group listen, from `/proc` (proc_pid_net(5), proc_pid_fd(5)).
//!
//! Only for messages: a server on a port that no one expects is the most frequent mistake of a new
//! function.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use rustix::process::Pid;

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

/// Returns whether a connection to a local port exists. False where `/proc` cannot be read.
pub(crate) fn is_port_connected(port: u16) -> bool {
    SocketTable::read().connected.contains(&port)
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
        let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
        let texts = tables.map(|table| fs::read_to_string(table).unwrap_or_default());
        let mut sockets = Self::default();
        for (state, inode, port) in texts
            .iter()
            .flat_map(|text| text.lines().filter_map(parse_line))
        {
            match state {
                LISTEN_STATE => drop(sockets.listeners.insert(inode, port)),
                ESTABLISHED_STATE => drop(sockets.connected.insert(port)),
                _ => {}
            }
        }
        sockets
    }
}

/// Parses a line of a table: state, inode, local port. `None` for the heading.
fn parse_line(line: &str) -> Option<(&str, u64, u16)> {
    let mut fields = line.split_ascii_whitespace();
    let local = fields.nth(1)?;
    let state = fields.nth(1)?;
    let inode = fields.nth(5)?.parse().ok()?;
    let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
    Some((state, inode, port))
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
    use rustix::process::{getpgrp, getpid};
    use std::net::TcpListener;

    #[test]
    fn own_listeners_are_found_and_connections_are_not() {
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
        assert!(group.idle.contains(&idle.local_addr().unwrap().port()));
        assert_eq!(group.of_leader.contains(&port), getpid() == getpgrp());
    }

    #[test]
    fn lines_of_the_table_are_parsed() {
        let line = |state| {
            format!(
                "   0: 00000000:1F90 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 1000 0 4711 1 0000"
            )
        };
        assert_eq!(parse_line(&line("0A")), Some(("0A", 4711, 8080)));
        assert_eq!(parse_line("  sl  local_address rem_address   st"), None);
    }
}
