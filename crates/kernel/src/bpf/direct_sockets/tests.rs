use super::*;
use crate::bpf::btf::{assert_layout, layout};
use crate::namespace;
use crate::netlink::RtnlSocket;
use crate::sockets::raw_options::set_option;
use std::time::Duration;

/// Ports below those that the kernel chooses.
const PORTS: RangeInclusive<u16> = 8_500..=8_509;

/// A socket of another process, with a limit for each wait.
fn bind_peer() -> (UdpSocket, SocketAddr) {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let addr = peer.local_addr().unwrap();
    (peer, addr)
}

/// Runs `test` in a network namespace of its own.
fn in_netns(test: impl FnOnce() + Send) {
    namespace::create_netns(|| {
        let mut rtnl = RtnlSocket::open()?;
        let lo = rtnl.device_index("lo")?;
        rtnl.set_up(lo)?;
        test();
        Ok(())
    })
    .unwrap();
}

/// Sends a datagram to `to` in each way that a program has. Returns those that the kernel accepts.
fn sent_ways(socket: &UdpSocket, to: SocketAddr, by: SocketAddr) -> Vec<&'static str> {
    let mut ways = Vec::new();
    let mut note = |way, sent: io::Result<usize>| {
        if sent.is_ok() {
            ways.push(way);
        }
    };
    note("sendto", socket.send_to(b"x", to));
    let batch = rustix::net::sendmsg_addr(
        socket,
        &to,
        &[io::IoSlice::new(b"x")],
        &mut rustix::net::SendAncillaryBuffer::default(),
        rustix::net::SendFlags::empty(),
    );
    note("sendmsg", batch.map_err(io::Error::from));
    // A loose source route (RFC 791): the packet goes to `to` first, for the peer `by`.
    let (IpAddr::V4(first), SocketAddr::V4(last)) = (to.ip(), by) else {
        unreachable!("the tests use IPv4")
    };
    let route = [&[131, 7, 4][..], &first.octets(), &[0]].concat();
    if set_option(socket, libc::IPPROTO_IP, libc::IP_OPTIONS, &route).is_ok() {
        note("source route", socket.send_to(b"x", last));
        set_option(socket, libc::IPPROTO_IP, libc::IP_OPTIONS, &[]).unwrap();
    }
    let connected = socket.connect(to).and_then(|()| socket.send(b"x"));
    note("connect", connected);
    rustix::net::connect_unspec(socket).unwrap();
    ways
}

/// Opens a socket that may reach `peer`. `None`: filters are unavailable here, as the text says.
fn open_for(peer: SocketAddr) -> Result<(DirectSockets, UdpSocket, PermittedPeers), String> {
    let sockets = DirectSockets::start().map_err(|error| error.to_string())?;
    let any = sockets.open([127, 0, 0, 1].into(), PORTS).unwrap();
    let DirectSocket {
        socket, mut peers, ..
    } = any;
    peers.replace([peer].into()).unwrap();
    let socket = UdpSocket::from(socket);
    let limit = Some(Duration::from_secs(10));
    socket.set_read_timeout(limit).unwrap();
    Ok((sockets, socket, peers))
}

#[test]
fn a_handed_over_socket_reaches_permitted_peers_alone() {
    nearpath_testkit::need_root!();
    in_netns(|| {
        let ((peer, peer_addr), (other, other_addr)) = (bind_peer(), bind_peer());
        let (_sockets, socket, mut peers) = match open_for(peer_addr) {
            Ok(opened) => opened,
            Err(why) => nearpath_testkit::skip!("filters of sockets are unavailable: {why}"),
        };
        let (addr, mut bytes) = (socket.local_addr().unwrap(), [0; 8]);
        assert_eq!(
            sent_ways(&socket, other_addr, peer_addr),
            Vec::<&str>::new()
        );
        // In the other direction: what comes first is the peer's, so the other's was dropped.
        other.send_to(b"other", addr).unwrap();
        peer.send_to(b"peer", addr).unwrap();
        let (length, from) = socket.recv_from(&mut bytes).unwrap();
        assert_eq!((&bytes[..length], from), (&b"peer"[..], peer_addr));
        socket.send_to(b"reply", peer_addr).unwrap();
        assert_eq!(peer.recv_from(&mut bytes).unwrap().1, addr);
        // Another list of peers is valid at once.
        peers.replace([other_addr].into()).unwrap();
        socket.send_to(b"x", other_addr).unwrap();
        assert!(socket.send_to(b"x", peer_addr).is_err());
        drop(peers);
        assert!(socket.send_to(b"x", other_addr).is_err());
    });
}

/// Control: the same datagrams of a socket without a filter arrive in all ways.
#[test]
fn control_a_socket_without_a_filter_reaches_anyone() {
    nearpath_testkit::need_root!();
    in_netns(|| {
        let ((_peer, peer_addr), (_other, other_addr)) = (bind_peer(), bind_peer());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let ways = ["sendto", "sendmsg", "source route", "connect"];
        assert_eq!(sent_ways(&socket, other_addr, peer_addr), ways);
    });
}

#[test]
fn each_socket_has_peers_of_its_own() {
    nearpath_testkit::need_root!();
    in_netns(|| {
        let ((_one, one), (_two, two)) = (bind_peer(), bind_peer());
        let (sockets, first, _first_peers) = match open_for(one) {
            Ok(opened) => opened,
            Err(why) => nearpath_testkit::skip!("filters of sockets are unavailable: {why}"),
        };
        let mut second = sockets.open([127, 0, 0, 1].into(), PORTS).unwrap();
        second.peers.replace([two].into()).unwrap();
        let second_socket = UdpSocket::from(second.socket);
        assert!(first.send_to(b"x", one).is_ok() && first.send_to(b"x", two).is_err());
        assert!(second_socket.send_to(b"x", two).is_ok());
        assert!(second_socket.send_to(b"x", one).is_err());
    });
}

#[test]
fn a_range_without_a_free_port_is_named() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = bind_free([127, 0, 0, 1].into(), port..=port).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&port.to_string()), "{error}");
}

#[test]
fn keys_have_the_layout_of_the_program() {
    #[repr(C)]
    struct DirectPeer {
        socket: u64,
        address: [u32; 4],
        port: u32,
        zero: u32,
    }
    let rust = layout!(DirectPeer: socket, address, port, zero);
    assert_eq!(rust.size, size_of::<PeerKey>());
    assert_layout(object::direct_peers(), "direct_peer", rust);
}
