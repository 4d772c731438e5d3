//! Promises of `sockmap` alone: the kernel knows the sender.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use nearpath_domain::protocol::{
    ChannelError, EndpointMessage, HelloMessage, NodeMessage, WakeupMode,
};
use nearpath_domain::{
    CallDestination, CallError, CallRequest, CallResponse, UnsentReason, node_side, packet,
};
use nearpath_shm::{Descriptor, EndpointId, SockmapRecord};
use nearpath_types::InstanceId;
use rustix::net::{SendFlags, send};

use super::deaths::fault;
use super::node::{DeliveryMode, TestNode, function, knows};
use super::stranger::RawEndpoint;

pub(crate) fn a_forged_channel_number_disconnects_its_sender(mode: DeliveryMode) {
    let mut node = TestNode::new(mode);
    node.edges(&[("a", "b")]);
    let b = node.serve(2, "b", |_, incoming| {
        CallResponse::ok(incoming.body.clone())
    });
    let mut a = node.caller(1, "a");
    knows(&mut a, "b"); // over channel 1
    let forger = RawEndpoint::join(&node, mode, 3, "forger");
    let forged = SockmapRecord {
        descriptor: Descriptor::from_words([1 << 32, 64 << 32]),
        channel: 1,
        sender: 1,
    };
    let wire = forger.wire.as_ref().unwrap();
    send(wire, &forged.to_bytes(), SendFlags::NOSIGNAL).unwrap();
    let fault = fault(&mut node);
    assert_eq!(fault.instance, Some(InstanceId(3)));
    assert!(fault.reason.contains("channel 1"), "{}", fault.reason);
    while packet::receive_packet(&forger.socket).unwrap().is_some() {} // until the node hangs up
    while wire.read_records(&mut [0; 32], true).unwrap() > 0 {} // and takes its socket away
    let reply = a
        .call(
            CallDestination::Function(&function("b")),
            &CallRequest::default(),
        )
        .unwrap();
    assert_eq!(reply.status, 200, "the others go on");
    drop(a);
    node.stop();
    b.join().unwrap();
}

/// An exchange of a node that has no descriptor left for the first channels.
#[derive(Debug)]
struct FailingExchange {
    inner: std::sync::Arc<dyn node_side::SockmapExchange>,
    failures: AtomicU32,
}

impl node_side::SockmapExchange for FailingExchange {
    fn create_sockets(&self, endpoint: EndpointId) -> io::Result<[OwnedFd; 2]> {
        self.inner.create_sockets(endpoint)
    }

    fn remove_endpoint(&self, endpoint: EndpointId) {
        self.inner.remove_endpoint(endpoint);
    }

    fn permit_channel(&self, from: EndpointId, channel: u32, to: EndpointId) -> io::Result<()> {
        let fails = || {
            self.failures
                .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
                .is_ok()
        };
        match channel > 0 && fails() {
            true => Err(rustix::io::Errno::MFILE.into()),
            false => self.inner.permit_channel(from, channel, to),
        }
    }

    fn revoke_channel(&self, from: EndpointId, channel: u32) {
        self.inner.revoke_channel(from, channel);
    }
}

pub(crate) fn a_channel_that_cannot_be_made_is_reported_and_retried(mode: DeliveryMode) {
    let node_side::DescriptorDelivery::Sockmap(inner) = super::node::delivery(mode) else {
        panic!("only this one can be told to fail")
    };
    let exchange = std::sync::Arc::new(FailingExchange {
        inner,
        failures: AtomicU32::new(2),
    });
    let settings = node_side::DomainSettings {
        delivery: node_side::DescriptorDelivery::Sockmap(exchange),
        ..node_side::DomainSettings::named("test")
    };
    let node = TestNode::started(|| node_side::DomainHandle::start(settings));
    node.edges(&[("a", "b")]);
    let b = node.serve(2, "b", |_, incoming| {
        CallResponse::ok(incoming.body.clone())
    });
    let mut a = node.caller(1, "a");
    let to = function("b");
    let mut last = None;
    let reply = loop {
        match a.call(CallDestination::Function(&to), &CallRequest::default()) {
            Ok(reply) => break reply,
            Err(CallError::Unsent(why)) => {
                last = Some(why)
                    .filter(|why| *why != UnsentReason::NoPeer)
                    .or(last)
            }
            Err(other) => panic!("{other}"),
        }
        std::thread::yield_now();
    };
    assert_eq!(
        (reply.status, last),
        (
            200,
            Some(UnsentReason::NoChannel(ChannelError::Descriptors))
        )
    );
    assert!(
        last.unwrap()
            .to_string()
            .contains("no file descriptor left"),
        "{}",
        last.unwrap()
    );
    drop(a);
    node.stop();
    b.join().unwrap();
}

pub(crate) fn a_library_without_sockmap_is_refused(mode: DeliveryMode) {
    let mut node = TestNode::new(mode);
    for delivery in [vec![], vec![DeliveryMode::Ring, DeliveryMode::Poll]] {
        let socket = node.socket(1, "f");
        rustix::io::ioctl_fionbio(&socket, false).unwrap();
        let hello = HelloMessage {
            version: 1,
            serves: true,
            substitute: false,
            serves_only: false,
            wakeup: WakeupMode::Futex,
            delivery,
            isolation: vec![],
        };
        packet::send_message(&socket, &EndpointMessage::Hello(hello), &[]).unwrap();
        let packet = packet::receive_packet(&socket).unwrap().unwrap();
        let Ok(Some(NodeMessage::Refused(refused))) = NodeMessage::parse_packet(&packet.bytes)
        else {
            panic!("not refused")
        };
        assert!(
            refused.reason.contains("nearpath.io/delivery: sockmap"),
            "{}",
            refused.reason
        );
        assert_eq!(fault(&mut node).reason, refused.reason);
    }
    node.stop();
}
