//! Instances with a forwarder: it is attached before any of their code runs.

use std::io::{ErrorKind, Write};
use std::net::TcpListener;
use std::sync::Arc;

use crate::fixture::{GATEWAY, Lab};
use nearpath_kernel::attached_netns::{AttachedNetns, NEXT_HOP};
use nearpath_kernel::bpf::Forwarder;
use nearpath_kernel::namespace::run_in_netns;
use nearpath_kernel::sandbox::SandboxSpec;
use nearpath_types::Eip;

/// Connects as its first action, and prints the greeting or the error.
const CONNECT_AT_ONCE: &str = "
import socket
try:
    with socket.create_connection(('10.62.0.1', 7000), 2) as s: print(s.recv(9).decode())
except OSError as why: print('no:', why)
";

struct ForwardedLab {
    lab: Lab,
    forwarder: Arc<Forwarder>,
    gateway: AttachedNetns,
}

impl ForwardedLab {
    fn new(forwarder: Forwarder) -> Self {
        let (lab, forwarder) = (Lab::with_address(NEXT_HOP), Arc::new(forwarder));
        let gateway = AttachedNetns::create(&*lab.hub, Eip(GATEWAY), "gateway", NEXT_HOP).unwrap();
        forwarder
            .attach_device(&*lab.hub, gateway.eip(), gateway.device())
            .unwrap();
        Self {
            lab,
            forwarder,
            gateway,
        }
    }

    fn spec(&self, script: &str) -> (SandboxSpec, Eip) {
        let mut spec = self.lab.python(script);
        let network = spec.network.as_mut().unwrap();
        network.forwarder = Some(self.forwarder.clone());
        let eip = network.eip;
        (spec, eip)
    }
}

macro_rules! forwarded_lab {
    () => {{
        nearpath_testkit::need_root!();
        match Forwarder::load_program() {
            Ok(forwarder) => ForwardedLab::new(forwarder),
            Err(why)
                if matches!(
                    why.kind(),
                    ErrorKind::Unsupported | ErrorKind::PermissionDenied
                ) =>
            {
                nearpath_testkit::skip!("BPF is unavailable: {why}")
            }
            Err(why) => panic!("{why}"),
        }
    }};
}

#[test]
fn the_first_packet_of_an_instance_is_forwarded() {
    let forwarded = forwarded_lab!();
    let listener = run_in_netns(&forwarded.gateway, || TcpListener::bind((GATEWAY, 7000))).unwrap();
    let (spec, eip) = forwarded.spec(CONNECT_AT_ONCE);
    forwarded.forwarder.allow_pair(Eip(GATEWAY), eip).unwrap();
    let gateway = std::thread::spawn(move || {
        let (mut caller, from) = listener.accept().unwrap();
        caller.write_all(b"welcome").unwrap();
        from
    });
    let result = forwarded.lab.run(&spec);
    assert_eq!(result.out, "welcome\n", "{result:?}");
    assert_eq!(
        gateway.join().unwrap().ip(),
        eip.0,
        "the source is the instance's eIP"
    );
    assert!(forwarded.forwarder.pair_counters(eip, Eip(GATEWAY)).packets > 2);
    assert_eq!(forwarded.forwarder.packet_counters().denied, 0);
}

#[test]
fn without_permission_an_instance_reaches_nothing() {
    let forwarded = forwarded_lab!();
    let _listener =
        run_in_netns(&forwarded.gateway, || TcpListener::bind((GATEWAY, 7000))).unwrap();
    let (spec, eip) = forwarded.spec(CONNECT_AT_ONCE);
    let result = forwarded.lab.run(&spec);
    assert!(result.out.starts_with("no:"), "{result:?}");
    assert!(forwarded.forwarder.packet_counters().denied > 0);
    assert_eq!(
        forwarded.forwarder.pair_counters(eip, Eip(GATEWAY)).packets,
        0
    );
}
