//! UDP sockets of the machine for instances: each reaches its permitted peers only, see
//! `bpf/direct_peers.c`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use aya::Ebpf;
use aya::maps::{HashMap, MapData};
use aya::programs::{CgroupAttachMode, CgroupSkb, CgroupSkbAttachType};
use rustix::net::sockopt::socket_cookie;

use super::object::{self, bpf_error, load_object, take_map};
use super::socket_cgroup_guard::{enter_new_group, leave_group};

/// Programs of the object, and the direction of their packets.
const PROGRAMS: [(&str, CgroupSkbAttachType); 2] = [
    ("to_peer", CgroupSkbAttachType::Egress),
    ("from_peer", CgroupSkbAttachType::Ingress),
];

/// `struct direct_peer` of `bpf/direct_peers.c`: the cookie in two words, four words of an IPv6
/// address, the port in network byte order, and zero.
type PeerKey = [u32; 8];
type PeerMap = Arc<Mutex<HashMap<MapData, PeerKey, u8>>>;

/// Socket to open, with the channel for the result.
struct OpenRequest {
    ip: IpAddr,
    ports: RangeInclusive<u16>,
    reply: mpsc::Sender<io::Result<UdpSocket>>,
}

/// Opens sockets in a cgroup whose packets are filtered.
///
/// Its thread is the only one in the cgroup, so no other socket is filtered. Drop it after the
/// processes that hold such sockets: the filter ends with it.
#[derive(Debug)]
pub struct DirectSockets {
    requests: mpsc::Sender<OpenRequest>,
    peers: PeerMap,
}

/// A socket for an instance.
#[derive(Debug)]
pub struct DirectSocket {
    /// The socket, which reaches no address before a peer is permitted.
    pub socket: OwnedFd,
    /// Its port on the machine.
    pub port: u16,
    /// Peers of the socket.
    pub peers: PermittedPeers,
}

/// Peers of one socket. Dropping it permits none.
#[derive(Debug)]
pub struct PermittedPeers {
    cookie: u64,
    current: BTreeSet<SocketAddr>,
    map: PeerMap,
}

impl DirectSockets {
    /// Starts the thread, in the network namespace of the caller.
    ///
    /// # Errors
    /// Fails if this build has no BPF programs, or without `CAP_BPF` and `CAP_NET_ADMIN`. Also
    /// fails without a unified hierarchy in which this process may create a threaded cgroup.
    pub fn start() -> io::Result<Self> {
        let (requests, queue) = mpsc::channel();
        let (ready, started) = mpsc::channel();
        thread::Builder::new()
            .name("direct-sockets".to_owned())
            .spawn(move || serve_requests(&queue, &ready))?;
        let peers = started
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))?;
        Ok(Self {
            requests,
            peers: Arc::new(Mutex::new(peers)),
        })
    }

    /// Opens a socket at the first free port. Blocks.
    ///
    /// # Errors
    /// Fails with `EADDRINUSE` when no port is free.
    pub fn open(&self, ip: IpAddr, ports: RangeInclusive<u16>) -> io::Result<DirectSocket> {
        let (reply, opened) = mpsc::channel();
        let ended = || io::Error::other("the thread of direct sockets has ended");
        let request = OpenRequest { ip, ports, reply };
        self.requests.send(request).map_err(|_| ended())?;
        let socket = opened.recv().map_err(|_| ended())??;
        Ok(DirectSocket {
            port: socket.local_addr()?.port(),
            peers: PermittedPeers {
                cookie: socket_cookie(&socket)?,
                current: BTreeSet::new(),
                map: self.peers.clone(),
            },
            socket: socket.into(),
        })
    }
}

impl PermittedPeers {
    /// Replaces the peers. Packets of removed ones are dropped from then on.
    ///
    /// # Errors
    /// Fails when the kernel has no memory for a peer, or the map of all sockets is full. Peers before it
    /// are applied, later ones are not.
    pub fn replace(&mut self, peers: BTreeSet<SocketAddr>) -> io::Result<()> {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in self.current.difference(&peers) {
            // It is in the map: nothing else removes it.
            let _ = map.remove(&peer_key(self.cookie, *gone));
        }
        self.current.retain(|peer| peers.contains(peer));
        for new in peers {
            if !self.current.contains(&new) {
                map.insert(peer_key(self.cookie, new), 1, 0)
                    .map_err(|error| bpf_error(&error))?;
                self.current.insert(new);
            }
        }
        Ok(())
    }
}

impl Drop for PermittedPeers {
    fn drop(&mut self) {
        let _ = self.replace(BTreeSet::new()); // removes only, which cannot fail
    }
}

/// Runs until the sender of requests is dropped.
fn serve_requests(
    queue: &mpsc::Receiver<OpenRequest>,
    ready: &mpsc::Sender<io::Result<HashMap<MapData, PeerKey, u8>>>,
) {
    let folder = match enter_new_group() {
        Ok(folder) => folder,
        Err(error) => return drop(ready.send(Err(error))),
    };
    let attached = File::open(&folder).and_then(|group| attach_programs(&group));
    match attached {
        Ok((_attached, peers)) => {
            let _ = ready.send(Ok(peers)); // its receiver waits
            for request in queue {
                let _ = request.reply.send(bind_free(request.ip, request.ports)); // as above
            }
        }
        Err(error) => drop(ready.send(Err(error))),
    }
    leave_group(&folder);
}

fn attach_programs(group: &File) -> io::Result<(Ebpf, HashMap<MapData, PeerKey, u8>)> {
    let mut loaded = load_object(object::direct_peers()?)?;
    for (name, direction) in PROGRAMS {
        let program: &mut CgroupSkb = object::program(&mut loaded, name)?;
        program.load().map_err(|error| bpf_error(&error))?;
        // Links allow no other mode, and still share the group with other programs.
        let attached = program.attach(group, direction, CgroupAttachMode::Single);
        attached.map_err(|error| bpf_error(&error))?;
    }
    let peers = take_map(&mut loaded, "direct_peers")?;
    Ok((loaded, peers))
}

/// Binds the first port that is free.
fn bind_free(ip: IpAddr, ports: RangeInclusive<u16>) -> io::Result<UdpSocket> {
    let text = format!("no UDP port of {ip} is free in {ports:?}");
    for port in ports {
        match UdpSocket::bind((ip, port)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound,
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, text))
}

fn peer_key(cookie: u64, peer: SocketAddr) -> PeerKey {
    let address = match peer.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let word = |octets: &[u8; 4]| u32::from_ne_bytes(*octets);
    let (cookie, address) = (cookie.to_ne_bytes(), address.octets());
    let mut words = cookie
        .as_chunks::<4>()
        .0
        .iter()
        .chain(address.as_chunks().0);
    let mut key = [0; 8];
    for (to, from) in key.iter_mut().zip(&mut words) {
        *to = word(from);
    }
    key[6] = u32::from(peer.port().to_be());
    key
}

#[cfg(test)]
mod tests;
