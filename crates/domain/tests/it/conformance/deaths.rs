//! Processes that are killed in the middle of calls, and strangers that speak nonsense.
use std::os::fd::AsFd;
use std::path::Path;

use super::node::{
    DISPATCH_VARIABLE, DeliveryMode, ROLE_VARIABLE, TEST_TIMEOUT, TestNode, function, knows,
    knows_async,
};
use bytes::Bytes;
use nearpath_domain::endpoint::{self, blocking};
use nearpath_domain::node_side::InstanceFault;
use nearpath_domain::protocol::{EndpointMessage, HelloMessage, NodeMessage, WakeupMode};
use nearpath_domain::{CallDestination, CallError, CallRequest, CallResponse, packet};
use nearpath_shm::channel::ChannelState;
use nearpath_shm::{Envelope, MessageDraft, MessageKind};
use nearpath_types::InstanceId;

use super::stranger::pair;

fn body(bytes: &'static [u8]) -> CallRequest<'static> {
    CallRequest {
        body: Bytes::from_static(bytes),
        ..CallRequest::default()
    }
}

/// Plays the role of the child; in the parent this test does nothing.
#[test]
fn role() {
    let (Ok(role), Ok(socket_path)) = (
        std::env::var(ROLE_VARIABLE),
        std::env::var(DISPATCH_VARIABLE),
    ) else {
        return;
    };
    if role == "source" {
        return super::streams::source(&socket_path);
    }
    let mut endpoint = blocking::BlockingEndpoint::dial(
        Path::new(&socket_path),
        endpoint::EndpointSettings::default(),
    )
    .unwrap();
    match role.as_str() {
        "echo" => endpoint
            .serve_calls(|_, incoming| CallResponse::ok(std::mem::take(&mut incoming.body)))
            .unwrap(),
        "hang" => {
            endpoint.announce_ready().unwrap();
            let _kept: Vec<_> = std::iter::from_fn(|| endpoint.next_incoming(None)).collect();
        }
        "caller" => {
            knows(&mut endpoint, "sink");
            let request = CallRequest {
                body: vec![1; 100_000].into(),
                ..CallRequest::default()
            };
            loop {
                let _ = endpoint
                    .begin_call(CallDestination::Function(&function("sink")), &request)
                    .map(|pending| endpoint.wait_response(pending));
            }
        }
        _ => panic!("no such role"),
    }
}

pub(crate) fn callers_of_a_killed_instance_fail_at_once(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "hang")]);
    let mut process = node.process(2, "hang", "hang");
    let mut a = node.caller(1, "a");
    knows(&mut a, "hang");
    let id = function("hang");
    let mut pending: Vec<_> = (0..20)
        .map(|_| {
            a.begin_call(CallDestination::Function(&id), &body(b"x"))
                .unwrap()
        })
        .collect();
    let large = CallRequest {
        body: vec![1; 10 << 20].into(),
        ..CallRequest::default()
    };
    pending.push(
        a.begin_call(CallDestination::Function(&id), &large)
            .unwrap(),
    );
    process.kill();
    for pending in pending {
        // No deadline was given: nothing else ends the wait
        assert_eq!(a.wait_response(pending).unwrap_err(), CallError::PeerDied);
    }
    drop(a);
    node.until("all slots are back", |usage| {
        usage.slots == 0 && usage.channels == 0 && usage.endpoints == 0
    });
    node.stop();
}

pub(crate) fn gateway_calls_fail_and_another_instance_takes_over(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    let mut process = node.process(2, "f", "hang");
    node.until("the first is there", |usage| usage.endpoints == 1);
    node.gateway(|endpoint| {
        let node = &node;
        async move {
            knows_async(&endpoint, "f").await;
            let id = function("f");
            let calls: Vec<_> = (0..50)
                .map(|_| {
                    endpoint
                        .call(CallDestination::Function(&id), &body(b"x"))
                        .unwrap()
                })
                .collect();
            process.kill();
            for call in calls {
                assert_eq!(call.await.unwrap_err(), CallError::PeerDied);
            }
            let echo = node.serve(3, "f", |_, incoming| {
                CallResponse::ok(incoming.body.clone())
            });
            knows_async(&endpoint, "f").await;
            assert_eq!(
                endpoint
                    .call(CallDestination::Function(&id), &body(b"y"))
                    .unwrap()
                    .await
                    .unwrap()
                    .body,
                "y"
            );
            node.hub.remove_instance(InstanceId(3));
            echo.join().unwrap();
        }
    });
    node.until("all slots are back", |usage| {
        usage.slots == 0 && usage.channels == 0 && usage.endpoints == 0
    });
    node.stop();
}

pub(crate) fn slots_of_killed_callers_are_reclaimed(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("caller", "sink")]);
    let sink = node.serve(1, "sink", |_, incoming| {
        CallResponse::ok(incoming.body.clone())
    });
    for round in 0..10 {
        let mut process = node.process(10 + round, "caller", "caller");
        let calls = || {
            let edges = node.runtime.block_on(node.hub.read_edges());
            edges
                .iter()
                .map(|edge| edge.by_callee.answered)
                .sum::<u64>()
        };
        let before = calls();
        nearpath_testkit::eventually_blocking("three calls are answered", || {
            assert!(
                process.child.try_wait().unwrap().is_none(),
                "the child failed by itself"
            );
            calls() >= before + 3
        });
        process.kill();
        node.hub.remove_instance(InstanceId(10 + round));
        node.until("all slots are back", |usage| {
            usage.slots == 0 && usage.channels == 0 && usage.endpoints == 1
        });
    }
    node.stop();
    sink.join().unwrap();
}

pub(crate) fn fault(node: &mut TestNode) -> InstanceFault {
    let TestNode {
        runtime, faults, ..
    } = node;
    runtime.block_on(async {
        tokio::time::timeout(TEST_TIMEOUT, faults.recv())
            .await
            .unwrap()
            .unwrap()
    })
}

pub(crate) fn an_endpoint_that_breaks_the_protocol_is_disconnected(mode: DeliveryMode) {
    let mut node = TestNode::new(mode);
    let hello = |version| {
        EndpointMessage::Hello(HelloMessage {
            version,
            serves: true,
            substitute: false,
            serves_only: false,
            wakeup: WakeupMode::None,
            delivery: vec![mode],
            isolation: vec![],
        })
    };
    let spoken: [&dyn Fn(&std::os::fd::OwnedFd); 5] = [
        &|socket| packet::send_bytes(socket, b"GET / HTTP/1.1", &[]).unwrap(),
        &|socket| packet::send_message(socket, &EndpointMessage::Ready {}, &[]).unwrap(),
        &|socket| packet::send_message(socket, &hello(7), &[]).unwrap(),
        &|socket| packet::send_bytes(socket, br#"{"ready":{}}"#, &[socket.as_fd(); 4]).unwrap(),
        &|socket| {
            packet::send_message(socket, &hello(1), &[]).unwrap();
            packet::send_bytes(socket, br#"{"drained":{"channel":1}}"#, &[]).unwrap();
        },
    ];
    for (instance, speak) in spoken.iter().enumerate() {
        let socket = node.socket(instance as u64, "f");
        speak(&socket);
        assert_eq!(fault(&mut node).instance, Some(InstanceId(instance as u64)));
        rustix::io::ioctl_fionbio(&socket, false).unwrap();
        while packet::receive_packet(&socket).unwrap().is_some() {}
    }
    node.until("nobody is left", |usage| usage.endpoints == 0);
    node.stop();
}

pub(crate) fn unknown_messages_and_members_are_ignored(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    let socket = node.socket(1, "f");
    packet::send_bytes(&socket, br#"{"weather":{"rain":true}}"#, &[socket.as_fd()]).unwrap();
    packet::send_bytes(
        &socket,
        br#"{"hello":{"version":1,"wakeup":"none","mood":"good","delivery":["sockmap","poll"]}}"#,
        &[],
    )
    .unwrap();
    rustix::io::ioctl_fionbio(&socket, false).unwrap();
    let welcome = packet::receive_packet(&socket).unwrap().unwrap();
    assert!(matches!(
        NodeMessage::parse_packet(&welcome.bytes).unwrap(),
        Some(NodeMessage::Welcome(_))
    ));
    let wire = usize::from(mode == DeliveryMode::Sockmap);
    assert_eq!(
        welcome.descriptors.len(),
        2 + wire,
        "pool, desk, and the socket if there is one"
    );
    node.stop();
}

pub(crate) fn a_call_against_the_edge_breaks_the_channel(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    // B speaks by itself, and will not keep to its side
    let (mut a, raw, mut end) = pair(&node, mode);
    let pending = a
        .begin_call(CallDestination::Function(&function("b")), &body(b"x"))
        .unwrap();
    end.send_message(
        MessageDraft::new(raw.member.claim_slot(256).unwrap())
            .finish(Envelope::new(MessageKind::Call, 1)),
    )
    .unwrap();
    end.flush_batch();
    assert_eq!(a.wait_response(pending).unwrap_err(), CallError::PeerDied);
    assert!(
        a.next_incoming(Some(std::time::Duration::ZERO)).is_none(),
        "it was not taken as a call"
    );
    assert_eq!(end.channel().state(), ChannelState::Broken);
    node.stop();
}

/// The node hears of it from the endpoint that found it, and makes another one.
pub(crate) fn a_broken_channel_is_replaced(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    let (mut a, raw, mut end) = pair(&node, mode);
    let asking = std::thread::spawn(move || {
        let broken = a
            .call(CallDestination::Function(&function("b")), &body(b"x"))
            .unwrap_err();
        knows(&mut a, "b"); // again, over the next one
        (
            broken,
            a.call(CallDestination::Function(&function("b")), &body(b"y"))
                .unwrap()
                .status,
        )
    });
    let _first = raw.receive(&mut end);
    end.break_channel();
    let gone = packet::receive_packet(&raw.socket).unwrap().unwrap();
    let Some(NodeMessage::Gone(gone)) = NodeMessage::parse_packet(&gone.bytes).unwrap() else {
        panic!("not told")
    };
    assert_eq!(gone.state, nearpath_domain::protocol::ChannelEnding::Dead);
    drop(end);
    let drained = EndpointMessage::Drained(nearpath_domain::protocol::ChannelDrained {
        channel: gone.channel,
    });
    packet::send_message(&raw.socket, &drained, &[]).unwrap();
    let mut end = raw.meet();
    let call = raw.receive(&mut end).envelope().call;
    let answer = Envelope {
        status: 200,
        ..Envelope::new(MessageKind::Answer, call)
    };
    end.send_message(MessageDraft::new(raw.member.claim_slot(256).unwrap()).finish(answer))
        .unwrap();
    end.flush_batch();
    assert_eq!(asking.join().unwrap(), (CallError::PeerDied, 200));
    node.stop();
}
