//! Peer addresses that functions see on handed-out sockets; see `bpf/sock_peer.c`.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use aya::Ebpf;
use aya::maps::{MapData, SkStorage};

use super::SocketCgroupGuard;
use super::object::{self, bpf_error, load_object, set_owner_cgroup, take_map};
use super::socket_cgroup_guard::attach_hook;

const HOOKS: [&str; 2] = ["show_peer4", "show_peer6"];

/// `struct peer_name`: four words of an IPv6 address and the port, in network byte order.
type PeerName = [u32; 5];

/// The names of the sockets made behind one [`SocketCgroupGuard`]. Dropping it ends them.
#[derive(Debug)]
pub struct PeerNames {
    names: SkStorage<MapData, PeerName>,
    _loaded: Ebpf,
}

impl PeerNames {
    /// Starts with no names.
    ///
    /// # Errors
    /// Fails before Linux 5.8, whose getpeername() has no hooks.
    pub fn attach(guard: &SocketCgroupGuard) -> io::Result<Self> {
        let group = File::open(guard.folder())?;
        let mut loaded = load_object(object::sock_peer()?)?;
        set_owner_cgroup(&mut loaded, &group)?;
        for hook in HOOKS {
            attach_hook(&mut loaded, hook, &group)?;
        }
        Ok(Self {
            names: take_map(&mut loaded, "peer_names")?,
            _loaded: loaded,
        })
    }

    /// Shows `peer` to every process outside the guard that asks for the socket's peer, as long as
    /// the socket exists.
    ///
    /// # Errors
    /// Fails when the kernel has no memory for it.
    pub fn set_peer_name(&mut self, socket: impl AsFd, peer: SocketAddr) -> io::Result<()> {
        let address = match peer.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let port = u32::from(peer.port().to_be());
        let mut name = [port; 5];
        for (word, octets) in name.iter_mut().zip(address.octets().as_chunks::<4>().0) {
            *word = u32::from_ne_bytes(*octets);
        }
        self.names
            .insert(&socket.as_fd().as_raw_fd(), name, 0)
            .map_err(|error| bpf_error(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::sync::mpsc;
    use std::thread;

    /// Connects to `to` behind a guard and names the peer `name`. Returns what the owner and what
    /// another thread see.
    fn names_of(to: SocketAddr, name: Option<SocketAddr>) -> io::Result<[SocketAddr; 2]> {
        let ((connected, receiver), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
        let owner = thread::spawn(move || {
            let named = SocketCgroupGuard::enter_current_thread().and_then(|guard| {
                let mut names = PeerNames::attach(&guard)?;
                let socket = TcpStream::connect(to)?;
                name.map_or(Ok(()), |name| names.set_peer_name(&socket, name))?;
                let seen = socket.peer_addr()?;
                Ok((socket, seen, names, guard))
            });
            let (kept, found) = match named {
                Ok((socket, seen, names, guard)) => (Some((names, guard)), Ok((socket, seen))),
                Err(why) => (None, Err(why)),
            };
            connected.send(found).unwrap();
            let _ = released.recv();
            drop(kept);
        });
        let seen = receiver
            .recv()
            .unwrap()
            .and_then(|(socket, by_owner)| Ok([by_owner, socket.peer_addr()?]));
        drop(release);
        owner.join().unwrap();
        seen
    }

    #[test]
    fn other_threads_see_the_name_and_the_owner_the_peer() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let v4 = server.local_addr().unwrap();
        let mapped = (Ipv4Addr::LOCALHOST.to_ipv6_mapped(), v4.port()).into();
        let name: SocketAddr = "10.61.0.2:5432".parse().unwrap();
        let mapped_name = "[::ffff:10.61.0.2]:5432".parse().unwrap();
        for (to, name, expected) in [
            (v4, Some(name), name),
            (mapped, Some(name), mapped_name),
            (mapped, None, mapped),
        ] {
            match names_of(to, name) {
                Ok(seen) => assert_eq!(seen, [to, expected]),
                Err(why) => nearpath_testkit::skip!("peer names are unavailable: {why}"),
            }
        }
    }
}
