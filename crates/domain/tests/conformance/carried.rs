//! What only `sockmap` promises: the kernel knows who sends.

use nearpath_domain::protocol::{Bell, FromNode, FromParty, Hello};
use nearpath_domain::{Answer, Request, To, packet};
use nearpath_shm::{Descriptor, Record};
use nearpath_types::InstanceId;
use rustix::net::{SendFlags, send};

use super::deaths::fault;
use super::node::{Mode, Node, function, knows};
use super::stranger::Stranger;

pub(crate) fn a_forged_channel_cuts_its_sender_off(mode: Mode) {
    let mut node = Node::new(mode);
    node.edges(&[("a", "b")]);
    let b = node.serve(2, "b", |_, incoming| Answer::ok(incoming.body.clone()));
    let mut a = node.caller(1, "a");
    knows(&mut a, "b"); // over channel 1
    let forger = Stranger::join(&node, mode, 3, "forger");
    let forged = Record { descriptor: Descriptor::from_words([1 << 32, 64 << 32]), channel: 1, from: 1 };
    let wire = forger.wire.as_ref().unwrap();
    send(wire, &forged.to_bytes(), SendFlags::NOSIGNAL).unwrap();
    let fault = fault(&mut node);
    assert_eq!(fault.instance, Some(InstanceId(3)));
    assert!(fault.what.contains("channel 1"), "{}", fault.what);
    while packet::receive(&forger.socket).unwrap().is_some() {} // until the node hangs up
    while wire.fetch(&mut [0; 32], true).unwrap() > 0 {} // and takes its socket away
    let reply = a.call(To::Function(&function("b")), &Request::default()).unwrap();
    assert_eq!(reply.status, 200, "the others go on");
    drop(a);
    node.stop();
    b.join().unwrap();
}

pub(crate) fn a_library_that_cannot_is_refused(mode: Mode) {
    let mut node = Node::new(mode);
    for delivery in [vec![], vec![Mode::Ring, Mode::Poll]] {
        let socket = node.socket(1, "f");
        rustix::io::ioctl_fionbio(&socket, false).unwrap();
        let hello =
            Hello { version: 1, serves: true, stands_in: false, bell: Bell::Futex, delivery, isolation: vec![] };
        packet::send(&socket, &FromParty::Hello(hello), &[]).unwrap();
        let packet = packet::receive(&socket).unwrap().unwrap();
        let Ok(Some(FromNode::Refused(refused))) = FromNode::read(&packet.bytes) else { panic!("not refused") };
        assert!(refused.why.contains("nearpath.io/delivery: sockmap"), "{}", refused.why);
        assert_eq!(fault(&mut node).what, refused.why);
    }
    node.stop();
}
