//! Destinations outside, as instances reach them: accepted addresses and nothing else, in the hub
//! and with a forwarder.

use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::fixture::{GATEWAY, Lab};
use nearpath_kernel::attached_netns::{AttachedNetns, NEXT_HOP};
use nearpath_kernel::bpf::Forwarder;
use nearpath_kernel::egress_listener::EgressListener;
use nearpath_kernel::sandbox::{DestinationRoute, SandboxSpec};
use nearpath_types::Eip;

/// Addresses for documentation (RFC 5737).
const DECLARED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const OTHER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 8);
const EXIT_EIP: Eip = Eip(Ipv4Addr::new(10, 61, 0, 1));
const PORT: u16 = 7432;

/// Connects to each destination, and prints the greeting or the error.
const CONNECT_ALL: &str = "
import socket
for at in [('db.shop', 7432), ('192.0.2.7', 7433), ('192.0.2.8', 7432), ('10.62.0.1', 7432), ('8.8.8.8', 53)]:
    try:
        with socket.create_connection(at, 20) as s: print(s.recv(9).decode())
    except OSError as why: print(why.strerror or why)
";

/// Accepts one connection; returns its source and its destination.
fn accept_one(listener: TcpListener) -> JoinHandle<(SocketAddr, SocketAddr)> {
    std::thread::spawn(move || {
        listener.set_nonblocking(false).unwrap();
        let (mut caller, from) = listener.accept().unwrap();
        drop(listener); // closed before the caller continues, so its next connection is refused
        assert!(caller.nodelay().unwrap(), "inherited from the listener");
        caller.write_all(b"welcome").unwrap();
        (from, caller.local_addr().unwrap())
    })
}

fn connecting_spec(lab: &Lab) -> (SandboxSpec, Eip) {
    let mut spec = lab.python(CONNECT_ALL);
    let network = spec.network.as_mut().unwrap();
    network.destinations = vec![DestinationRoute {
        address: DECLARED,
        prefix_len: 32,
        hostname: Some("db.shop".into()),
    }];
    let eip = network.eip;
    (spec, eip)
}

#[test]
fn only_declared_addresses_are_reachable() {
    nearpath_testkit::need_root!();
    let lab = Lab::new();
    let listener_set = EgressListener::in_hub(&lab.hub).unwrap();
    listener_set.add_address(DECLARED).unwrap();
    listener_set.add_address(DECLARED).unwrap();
    let caller = accept_one(listener_set.listen_on(PORT).unwrap());
    let (spec, eip) = connecting_spec(&lab);
    let result = lab.run(&spec);
    let lines: Vec<_> = result.out.lines().collect();
    let none = "Network is unreachable";
    // The gateway's own address would reach the listener too, and the proxy would refuse it. The
    // listener is closed by then.
    assert_eq!(
        lines,
        [
            "welcome",
            "Connection refused",
            none,
            "Connection refused",
            none
        ],
        "{result:?}"
    );
    let (from, to) = caller.join().unwrap();
    assert_eq!(
        (from.ip(), to),
        (eip.0.into(), (DECLARED, PORT).into()),
        "source and destination"
    );
}

#[test]
fn a_removed_address_is_unreachable() {
    nearpath_testkit::need_root!();
    let lab = Lab::new();
    let listener_set = EgressListener::in_hub(&lab.hub).unwrap();
    listener_set.add_address(DECLARED).unwrap();
    let _listener = listener_set.listen_on(PORT).unwrap();
    let connect = |to| {
        nearpath_kernel::namespace::run_in_netns(&*lab.hub, || {
            std::net::TcpStream::connect((to, PORT))
        })
    };
    assert!(connect(DECLARED).is_ok(), "reachable before its removal");
    listener_set.remove_address(DECLARED);
    listener_set.remove_address(OTHER);
    assert_eq!(
        connect(DECLARED).unwrap_err().kind(),
        ErrorKind::NetworkUnreachable
    );
}

#[test]
fn a_forwarder_delivers_only_to_declared_addresses() {
    nearpath_testkit::need_root!();
    let forwarder = match Forwarder::load_program() {
        Ok(forwarder) => Arc::new(forwarder),
        Err(why)
            if matches!(
                why.kind(),
                ErrorKind::Unsupported | ErrorKind::PermissionDenied
            ) =>
        {
            nearpath_testkit::skip!("BPF is unavailable: {why}")
        }
        Err(why) => panic!("{why}"),
    };
    let lab = Lab::with_address(NEXT_HOP);
    let gateway = AttachedNetns::create(&*lab.hub, Eip(GATEWAY), "gateway", NEXT_HOP).unwrap();
    let exit_netns = AttachedNetns::create(&*lab.hub, EXIT_EIP, "exit", NEXT_HOP).unwrap();
    for netns in [&gateway, &exit_netns] {
        forwarder
            .attach_device(&*lab.hub, netns.eip(), netns.device())
            .unwrap();
    }
    let listener_set = EgressListener::in_attached_netns(&exit_netns, forwarder.clone()).unwrap();
    for address in [DECLARED, OTHER] {
        listener_set.add_address(address).unwrap();
    }
    let (mut spec, eip) = connecting_spec(&lab);
    spec.network.as_mut().unwrap().forwarder = Some(forwarder.clone());
    listener_set.allow_instance(eip, DECLARED).unwrap();
    let caller = accept_one(listener_set.listen_on(PORT).unwrap());
    let result = lab.run(&spec);
    let refused = "Connection refused";
    assert_eq!(
        result.out.lines().collect::<Vec<_>>(),
        ["welcome", refused, refused, refused, refused],
        "{result:?}"
    );
    let (from, to) = caller.join().unwrap();
    assert_eq!(
        (from.ip(), to),
        (eip.0.into(), (DECLARED, PORT).into()),
        "source and destination"
    );
    listener_set.forbid_instance(eip, DECLARED);
    assert_eq!(
        forwarder.pair_counters(eip, Eip(DECLARED)).packets,
        0,
        "its route is removed"
    );
}
