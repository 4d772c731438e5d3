//! What instances reach of the world outside: addresses that the node answers for, and nothing else; in the switch, and with a
//! forwarder.
#![allow(clippy::unwrap_used)]

mod lab;

use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use lab::{GATEWAY, Lab};
use nearpath_kernel::bpf::Forwarder;
use nearpath_kernel::doorway::Doorway;
use nearpath_kernel::sandbox::{Destination, Spec};
use nearpath_kernel::station::{NEXT_HOP, Station};
use nearpath_types::Eip;

/// Documentation's own (RFC 5737).
const DECLARED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const OTHER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 8);
const EXIT: Eip = Eip(Ipv4Addr::new(10, 61, 0, 1));
const PORT: u16 = 7432;

/// Knocks at each of the places, and prints what it is told or why not.
const KNOCK: &str = "
import socket
for at in [('db.shop', 7432), ('192.0.2.7', 7433), ('192.0.2.8', 7432), ('10.62.0.1', 7432), ('8.8.8.8', 53)]:
    try:
        with socket.create_connection(at, 20) as s: print(s.recv(9).decode())
    except OSError as why: print(why.strerror or why)
";

/// Lets one connection in, and tells who it was and whom it wanted.
fn answer(listener: TcpListener) -> JoinHandle<(SocketAddr, SocketAddr)> {
    std::thread::spawn(move || {
        listener.set_nonblocking(false).unwrap();
        let (mut caller, from) = listener.accept().unwrap();
        drop(listener); // before the caller goes on: it finds nobody at another address then
        assert!(caller.nodelay().unwrap(), "as its listener");
        caller.write_all(b"welcome").unwrap();
        (from, caller.local_addr().unwrap())
    })
}

fn knocking(lab: &Lab) -> (Spec, Eip) {
    let mut spec = lab.python(KNOCK);
    let network = spec.network.as_mut().unwrap();
    network.destinations = vec![Destination { address: DECLARED, length: 32, name: Some("db.shop".into()) }];
    let eip = network.eip;
    (spec, eip)
}

#[test]
fn a_declared_address_is_answered_for_and_no_other_is_reached() {
    nearpath_testkit::need_root!();
    let lab = Lab::new();
    let doorway = Doorway::in_switch(&lab.switch).unwrap();
    doorway.answer_for(DECLARED).unwrap();
    doorway.answer_for(DECLARED).unwrap();
    let caller = answer(doorway.listen(PORT).unwrap());
    let (spec, eip) = knocking(&lab);
    let ended = lab.run(&spec);
    let said: Vec<_> = ended.out.lines().collect();
    let none = "Network is unreachable";
    // At the gateway's own address the listener is there, too; who listens sees that nobody declared that. Here it is gone by then.
    assert_eq!(said, ["welcome", "Connection refused", none, "Connection refused", none], "{ended:?}");
    let (from, to) = caller.join().unwrap();
    assert_eq!((from.ip(), to), (eip.0.into(), (DECLARED, PORT).into()), "who calls, and whom");
}

#[test]
fn an_address_that_is_not_answered_for_any_more_is_gone() {
    nearpath_testkit::need_root!();
    let lab = Lab::new();
    let doorway = Doorway::in_switch(&lab.switch).unwrap();
    doorway.answer_for(DECLARED).unwrap();
    let _listener = doorway.listen(PORT).unwrap();
    let connect = |to| nearpath_kernel::namespace::within(&*lab.switch, || std::net::TcpStream::connect((to, PORT)));
    assert!(connect(DECLARED).is_ok(), "the control");
    doorway.answer_no_more(DECLARED);
    doorway.answer_no_more(OTHER);
    assert_eq!(connect(DECLARED).unwrap_err().kind(), ErrorKind::NetworkUnreachable);
}

#[test]
fn a_forwarder_lets_declared_addresses_through_and_nothing_else() {
    nearpath_testkit::need_root!();
    let forwarder = match Forwarder::load() {
        Ok(forwarder) => Arc::new(forwarder),
        Err(why) if matches!(why.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied) => {
            nearpath_testkit::skip!("no BPF here: {why}")
        }
        Err(why) => panic!("{why}"),
    };
    let lab = Lab::around(NEXT_HOP);
    let gateway = Station::create(&*lab.switch, Eip(GATEWAY), "gateway", NEXT_HOP).unwrap();
    let exit = Station::create(&*lab.switch, EXIT, "exit", NEXT_HOP).unwrap();
    for station in [&gateway, &exit] {
        forwarder.attach(&*lab.switch, station.eip(), station.device()).unwrap();
    }
    let doorway = Doorway::in_station(&exit, forwarder.clone()).unwrap();
    for address in [DECLARED, OTHER] {
        doorway.answer_for(address).unwrap();
    }
    let (mut spec, eip) = knocking(&lab);
    spec.network.as_mut().unwrap().forwarder = Some(forwarder.clone());
    doorway.let_through(eip, DECLARED).unwrap();
    let caller = answer(doorway.listen(PORT).unwrap());
    let ended = lab.run(&spec);
    let refused = "Connection refused";
    assert_eq!(ended.out.lines().collect::<Vec<_>>(), ["welcome", refused, refused, refused, refused], "{ended:?}");
    let (from, to) = caller.join().unwrap();
    assert_eq!((from.ip(), to), (eip.0.into(), (DECLARED, PORT).into()), "who calls, and whom");
    doorway.hold_back(eip, DECLARED);
    assert_eq!(forwarder.carried(eip, Eip(DECLARED)).packets, 0, "its row is gone");
}
