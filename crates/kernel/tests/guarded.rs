//! Instances with a forwarder at their pair: it stands before anything of theirs runs.
#![allow(clippy::unwrap_used)]

mod lab;

use std::io::{ErrorKind, Write};
use std::net::TcpListener;
use std::sync::Arc;

use lab::{GATEWAY, Lab};
use nearpath_kernel::bpf::Forwarder;
use nearpath_kernel::namespace::within;
use nearpath_kernel::sandbox::Spec;
use nearpath_kernel::station::{NEXT_HOP, Station};
use nearpath_types::Eip;

/// Connects as the first thing that it does, and prints what it is told or why not.
const CALL: &str = "
import socket
try:
    with socket.create_connection(('10.62.0.1', 7000), 2) as s: print(s.recv(9).decode())
except OSError as why: print('no:', why)
";

struct Guarded {
    lab: Lab,
    forwarder: Arc<Forwarder>,
    gateway: Station,
}

impl Guarded {
    fn around(forwarder: Forwarder) -> Self {
        let (lab, forwarder) = (Lab::around(NEXT_HOP), Arc::new(forwarder));
        let gateway = Station::create(&*lab.switch, Eip(GATEWAY), "gateway", NEXT_HOP).unwrap();
        forwarder.attach(&*lab.switch, gateway.eip(), gateway.device()).unwrap();
        Self { lab, forwarder, gateway }
    }

    fn spec(&self, script: &str) -> (Spec, Eip) {
        let mut spec = self.lab.python(script);
        let network = spec.network.as_mut().unwrap();
        network.forwarder = Some(self.forwarder.clone());
        let eip = network.eip;
        (spec, eip)
    }
}

macro_rules! guarded {
    () => {{
        nearpath_testkit::need_root!();
        match Forwarder::load() {
            Ok(forwarder) => Guarded::around(forwarder),
            Err(why) if matches!(why.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied) => {
                nearpath_testkit::skip!("no BPF here: {why}")
            }
            Err(why) => panic!("{why}"),
        }
    }};
}

#[test]
fn the_first_packet_of_an_instance_is_forwarded() {
    let all = guarded!();
    let listener = within(&all.gateway, || TcpListener::bind((GATEWAY, 7000))).unwrap();
    let (spec, eip) = all.spec(CALL);
    all.forwarder.allow(Eip(GATEWAY), eip).unwrap();
    let gateway = std::thread::spawn(move || {
        let (mut caller, from) = listener.accept().unwrap();
        caller.write_all(b"welcome").unwrap();
        from
    });
    let ended = all.lab.run(&spec);
    assert_eq!(ended.out, "welcome\n", "{ended:?}");
    assert_eq!(gateway.join().unwrap().ip(), eip.0, "it is known by its address");
    assert!(all.forwarder.carried(eip, Eip(GATEWAY)).packets > 2);
    assert_eq!(all.forwarder.packets().denied, 0);
}

#[test]
fn without_a_row_it_reaches_nobody() {
    let all = guarded!();
    let _listener = within(&all.gateway, || TcpListener::bind((GATEWAY, 7000))).unwrap();
    let (spec, eip) = all.spec(CALL);
    let ended = all.lab.run(&spec);
    assert!(ended.out.starts_with("no:"), "{ended:?}");
    assert!(all.forwarder.packets().denied > 0);
    assert_eq!(all.forwarder.carried(eip, Eip(GATEWAY)).packets, 0);
}
