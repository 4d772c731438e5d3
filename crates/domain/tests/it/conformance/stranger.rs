//! An endpoint that speaks the protocols by hand, to do what the library would not.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use std::vec::IntoIter;

use nearpath_domain::endpoint::blocking;
use nearpath_domain::packet;
use nearpath_domain::protocol::{EndpointMessage, HelloMessage, NodeMessage, WakeupMode};
use nearpath_shm::sockmap::RECORD_BYTES;
use nearpath_shm::{
    Channel, ChannelEnd, ChannelSide, EndpointId, PoolEndpoint, ReceivedMessage, SlotPool,
    SockmapRecord, SockmapSocket, WakeupSignal,
};

use super::node::{DeliveryMode, TEST_TIMEOUT, TestNode, knows};

pub(crate) struct RawEndpoint {
    pub(crate) socket: OwnedFd,
    pub(crate) member: Arc<PoolEndpoint>,
    /// There when the kernel carries.
    pub(crate) wire: Option<SockmapSocket>,
}

impl RawEndpoint {
    pub(crate) fn join(node: &TestNode, mode: DeliveryMode, instance: u64, name: &str) -> Self {
        let socket = node.socket(instance, name);
        rustix::io::ioctl_fionbio(&socket, false).unwrap();
        let hello = HelloMessage {
            version: 1,
            serves: true,
            substitute: false,
            serves_only: false,
            wakeup: WakeupMode::None,
            delivery: vec![mode],
            isolation: vec![],
        };
        packet::send_message(&socket, &EndpointMessage::Hello(hello), &[]).unwrap();
        packet::send_message(&socket, &EndpointMessage::Ready {}, &[]).unwrap();
        let (NodeMessage::Welcome(welcome), mut fds) = next(&socket) else {
            panic!("no welcome")
        };
        let pool = SlotPool::open_region(fds.next().unwrap(), welcome.pool as usize).unwrap();
        let member = PoolEndpoint::new(
            Arc::new(pool),
            EndpointId::new(welcome.endpoint).unwrap(),
            u64::MAX,
        );
        let wire = fds
            .nth(1)
            .map(|wire| SockmapSocket::new(wire, TEST_TIMEOUT).unwrap());
        Self {
            socket,
            member,
            wire,
        }
    }

    /// The callee's end of the next channel that the node tells of.
    pub(crate) fn meet(&self) -> ChannelEnd {
        let (NodeMessage::Peer(peer), mut fds) = next(&self.socket) else {
            panic!("no peer")
        };
        let channel = Channel::open_region(fds.next().unwrap(), peer.capacity).unwrap();
        let signal = WakeupSignal::open_region(fds.next().unwrap(), fds.next()).unwrap();
        let end = channel.attach_end(
            ChannelSide::Callee,
            self.member.clone(),
            EndpointId::new(peer.endpoint).unwrap(),
            signal,
        );
        match &self.wire {
            Some(wire) => end.via_sockmap(wire.clone(), peer.channel),
            None => end,
        }
    }
}

impl RawEndpoint {
    /// The next message that comes.
    pub(crate) fn receive(&self, end: &mut ChannelEnd) -> ReceivedMessage {
        let start = Instant::now();
        while start.elapsed() < TEST_TIMEOUT {
            if let Some(wire) = &self.wire {
                let mut record = [0; RECORD_BYTES];
                assert_eq!(wire.read_records(&mut record, true).unwrap(), RECORD_BYTES);
                end.deliver_record(&SockmapRecord::from_bytes(&record));
            }
            if let Some(message) = end.receive_message().unwrap() {
                return message;
            }
            std::thread::yield_now();
        }
        panic!("nothing comes");
    }
}

/// An endpoint `a` that calls, a foreign peer `b` that it knows as instance 2, and b's end of their
/// channel.
pub(crate) fn pair(
    node: &TestNode,
    mode: DeliveryMode,
) -> (blocking::BlockingEndpoint, RawEndpoint, ChannelEnd) {
    node.edges(&[("a", "b")]);
    let raw = RawEndpoint::join(node, mode, 2, "b");
    let mut a = node.caller(1, "a");
    let end = raw.meet();
    knows(&mut a, "b");
    (a, raw, end)
}

fn next(socket: &OwnedFd) -> (NodeMessage, IntoIter<OwnedFd>) {
    let packet = packet::receive_packet(socket).unwrap().unwrap();
    (
        NodeMessage::parse_packet(&packet.bytes).unwrap().unwrap(),
        packet.descriptors.into_iter(),
    )
}
