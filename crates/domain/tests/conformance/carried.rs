//! What only `sockmap` promises: the kernel knows who sends.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use nearpath_domain::protocol::{Bell, FromNode, FromParty, Hello, Lack};
use nearpath_domain::{Answer, CallError, Request, To, Unsent, hub, packet};
use nearpath_shm::{Descriptor, Party, Record};
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

/// An exchange of a node that has no descriptor left for the first channels.
#[derive(Debug)]
struct Exhausted {
    inner: std::sync::Arc<dyn hub::Exchange>,
    failures: AtomicU32,
}

impl hub::Exchange for Exhausted {
    fn seat(&self, party: Party) -> io::Result<[OwnedFd; 2]> {
        self.inner.seat(party)
    }

    fn unseat(&self, party: Party) {
        self.inner.unseat(party);
    }

    fn permit(&self, from: Party, channel: u32, to: Party) -> io::Result<()> {
        let fails = || self.failures.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        match channel > 0 && fails() {
            true => Err(rustix::io::Errno::MFILE.into()),
            false => self.inner.permit(from, channel, to),
        }
    }

    fn revoke(&self, from: Party, channel: u32) {
        self.inner.revoke(from, channel);
    }
}

pub(crate) fn a_channel_that_cannot_be_made_is_told_and_tried_again(mode: Mode) {
    let hub::Delivery::Sockmap(inner) = super::node::delivery(mode) else {
        panic!("only this one can be told to fail")
    };
    let exchange = std::sync::Arc::new(Exhausted { inner, failures: AtomicU32::new(2) });
    let settings = hub::Settings { delivery: hub::Delivery::Sockmap(exchange), ..hub::Settings::named("test") };
    let node = Node::started(|| hub::Hub::start(settings));
    node.edges(&[("a", "b")]);
    let b = node.serve(2, "b", |_, incoming| Answer::ok(incoming.body.clone()));
    let mut a = node.caller(1, "a");
    let to = function("b");
    let mut last = None;
    let reply = loop {
        match a.call(To::Function(&to), &Request::default()) {
            Ok(reply) => break reply,
            Err(CallError::Unsent(why)) => last = Some(why).filter(|why| *why != Unsent::NoPeer).or(last),
            Err(other) => panic!("{other}"),
        }
        std::thread::yield_now();
    };
    assert_eq!((reply.status, last), (200, Some(Unsent::NoChannel(Lack::Descriptors))));
    assert!(last.unwrap().to_string().contains("no file descriptor left"), "{}", last.unwrap());
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
