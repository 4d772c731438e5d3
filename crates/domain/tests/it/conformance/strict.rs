//! Duties of endpoints in a strict domain, tested by one that speaks the protocol by hand.

use std::os::fd::{AsFd, OwnedFd};

use bytes::Bytes;
use nearpath_domain::node_side::DomainIsolation;
use nearpath_domain::protocol::{
    EndpointMessage, HelloMessage, NodeMessage, OwnPoolMessage, WakeupMode, WelcomeMessage,
};
use nearpath_domain::{CallDestination, CallRequest, CallResponse, packet};
use nearpath_shm::geometry::ClassSpec;
use nearpath_shm::region::{PageKind, Region};
use nearpath_shm::{PeerPool, SlotPool};
use nearpath_types::InstanceId;

use super::node::{DeliveryMode, TestNode, function, knows};

fn send_message(socket: &OwnedFd, message: EndpointMessage) {
    packet::send_message(socket, &message, &[]).unwrap();
}

/// Says hello; the node's answer.
fn hello(
    node: &TestNode,
    mode: DeliveryMode,
    instance: u64,
    name: &str,
    isolation: Vec<DomainIsolation>,
) -> (OwnedFd, NodeMessage) {
    let socket = node.socket(instance, name);
    rustix::io::ioctl_fionbio(&socket, false).unwrap();
    send_message(
        &socket,
        EndpointMessage::Hello(HelloMessage {
            version: 1,
            serves: true,
            substitute: false,
            serves_only: false,
            wakeup: WakeupMode::None,
            delivery: vec![mode],
            isolation,
        }),
    );
    let answer = packet::receive_packet(&socket).unwrap().unwrap();
    (
        socket,
        NodeMessage::parse_packet(&answer.bytes).unwrap().unwrap(),
    )
}

fn enter(
    node: &TestNode,
    mode: DeliveryMode,
    instance: u64,
    name: &str,
) -> (OwnedFd, WelcomeMessage) {
    let (socket, answer) = hello(node, mode, instance, name, vec![DomainIsolation::Strict]);
    let NodeMessage::Welcome(welcome) = answer else {
        panic!("no welcome: {answer:?}")
    };
    assert_eq!(welcome.isolation, DomainIsolation::Strict);
    (socket, welcome)
}

fn own(welcome: &WelcomeMessage) -> SlotPool {
    let sizes: Vec<ClassSpec> = welcome
        .classes
        .iter()
        .map(|&[size, count]| ClassSpec { size, count })
        .collect();
    let pool = SlotPool::create_strict(&sizes).unwrap();
    assert_eq!(pool.region_bytes() as u64, welcome.pool);
    pool
}

fn give(socket: &OwnedFd, bytes: u64, pool: impl AsFd) {
    packet::send_message(
        socket,
        &EndpointMessage::Pool(OwnPoolMessage { bytes }),
        &[pool.as_fd()],
    )
    .unwrap();
}

/// Returns the node's report of an endpoint's fault, after it has closed the socket.
fn fault(mut node: TestNode, socket: &OwnedFd) -> String {
    while packet::receive_packet(socket).unwrap().is_some() {}
    node.faults.blocking_recv().unwrap().reason
}

pub(crate) fn an_endpoint_without_strict_isolation_is_refused(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    let (_, answer) = hello(&node, mode, 1, "old", Vec::new());
    let NodeMessage::Refused(refused) = answer else {
        panic!("{answer:?}")
    };
    assert!(
        refused.reason.contains("nearpath.io/isolation: strict"),
        "{}",
        refused.reason
    );
}

pub(crate) fn only_a_sealed_pool_is_accepted(mode: DeliveryMode) {
    let report_of = |give_pool: fn(&OwnedFd, &WelcomeMessage)| {
        let node = TestNode::new(mode);
        let (socket, welcome) = enter(&node, mode, 1, "f");
        give_pool(&socket, &welcome);
        fault(node, &socket)
    };
    let open = report_of(|socket, welcome| {
        let region = Region::create("np-test", welcome.pool as usize, PageKind::Small).unwrap();
        give(socket, welcome.pool, region);
    });
    assert!(open.contains("not sealed against writing"), "{open}");
    let small = report_of(|socket, welcome| {
        let region = Region::create_read_only_for_others("np-test", 4096).unwrap();
        give(socket, welcome.pool, region);
    });
    assert!(small.contains("another size"), "{small}");
    let lied = report_of(|socket, welcome| give(socket, welcome.pool - 4096, own(welcome)));
    assert!(lied.contains("bytes, not"), "{lied}");
    let none = report_of(|socket, welcome| {
        send_message(
            socket,
            EndpointMessage::Pool(OwnPoolMessage {
                bytes: welcome.pool,
            }),
        )
    });
    assert!(none.contains("one descriptor"), "{none}");
    let second = report_of(|socket, welcome| {
        give(socket, welcome.pool, own(welcome));
        give(socket, welcome.pool, own(welcome));
    });
    assert!(second.contains("a second pool"), "{second}");
}

/// An endpoint that owes its pool has no channels; once it has given it, each side gets the
/// other's.
pub(crate) fn no_channel_is_opened_before_the_pool_arrives(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "b")]);
    let (callee, theirs) = enter(&node, mode, 2, "b");
    send_message(&callee, EndpointMessage::Ready {});
    let (caller, welcome) = enter(&node, mode, 1, "a");
    let (pool, other) = (own(&welcome), own(&theirs));
    give(&caller, welcome.pool, &pool);
    let membership = node.runtime.block_on(node.hub.read_usage());
    assert_eq!((membership.endpoints, membership.channels), (2, 0));
    give(&callee, theirs.pool, &other);
    for (socket, theirs) in [(&callee, &pool), (&caller, &other)] {
        let packet = packet::receive_packet(socket).unwrap().unwrap();
        let Some(NodeMessage::Peer(peer)) = NodeMessage::parse_packet(&packet.bytes).unwrap()
        else {
            panic!("no peer")
        };
        assert_eq!(peer.pool, Some(theirs.region_bytes() as u64));
        let pool = packet.descriptors.into_iter().nth(1).unwrap();
        let same = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
        assert_eq!(
            same(&pool),
            same(&theirs.as_fd().try_clone_to_owned().unwrap())
        );
        PeerPool::open_read_only(pool, theirs.region_bytes()).unwrap();
    }
}

/// The channel to an instance that is withdrawn ends when all has been read that lies in its
/// caller's pool.
pub(crate) fn events_are_read_before_a_channel_ends(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "b")]);
    let (count, counted) = std::sync::mpsc::channel();
    let serving = node.serve(2, "b", move |_, incoming| {
        count.send(incoming.body.clone()).unwrap();
        CallResponse::default()
    });
    let mut caller = node.caller(1, "a");
    knows(&mut caller, "b");
    let sent: Vec<Bytes> = (0..50u8)
        .map(|number| Bytes::from(vec![number; 3000]))
        .collect();
    for body in &sent {
        let request = CallRequest {
            body: body.clone(),
            ..CallRequest::default()
        };
        caller
            .send_event(CallDestination::Function(&function("b")), &request)
            .unwrap();
    }
    let hub = node.hub.clone();
    let withdrawn = node
        .runtime
        .spawn(async move { hub.withdraw_instance(InstanceId(2)).await });
    let waiting = std::thread::spawn(move || while caller.next_incoming(None).is_some() {});
    node.runtime.block_on(withdrawn).unwrap();
    let read: Vec<Bytes> = sent
        .iter()
        .map(|_| counted.recv_timeout(super::node::TEST_TIMEOUT).unwrap())
        .collect();
    assert_eq!(read, sent);
    node.stop();
    serving.join().unwrap();
    waiting.join().unwrap();
}
