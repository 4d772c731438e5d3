//! Processes that are killed in the middle of calls, and strangers that speak nonsense.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::fd::AsFd;
use std::path::Path;

use bytes::Bytes;
use common::{DOOR, Node, ROLE, function, knows, knows_async};
use nearpath_domain::hub::Fault;
use nearpath_domain::post::{self, blocking};
use nearpath_domain::protocol::{Bell, FromNode, FromParty, Hello};
use nearpath_domain::{Answer, CallError, Request, To, packet};
use nearpath_types::InstanceId;

fn body(bytes: &'static [u8]) -> Request<'static> {
    Request { body: Bytes::from_static(bytes), ..Request::default() }
}

/// What the child does; in the parent this test has nothing to do.
#[test]
fn role() {
    let (Ok(role), Ok(door)) = (std::env::var(ROLE), std::env::var(DOOR)) else { return };
    let mut post = blocking::Post::dial(Path::new(&door), post::Settings::default()).unwrap();
    match role.as_str() {
        "echo" => post.serve(|_, incoming| Answer::ok(incoming.body.clone())).unwrap(),
        "hang" => {
            post.ready().unwrap();
            let _kept: Vec<_> = std::iter::from_fn(|| post.next(None)).collect();
        }
        "caller" => {
            knows(&mut post, "sink");
            let request = Request { body: vec![1; 100_000].into(), ..Request::default() };
            loop {
                let _ = post.begin(To::Function(&function("sink")), &request).map(|pending| post.wait(pending));
            }
        }
        _ => panic!("no such role"),
    }
}

#[test]
fn callers_of_the_dead_hear_of_it_at_once() {
    let node = Node::new();
    node.edges(&[("a", "hang")]);
    let mut process = node.process(2, "hang", "hang");
    let mut a = node.caller(1, "a");
    knows(&mut a, "hang");
    let id = function("hang");
    let mut pending: Vec<_> = (0..20).map(|_| a.begin(To::Function(&id), &body(b"x")).unwrap()).collect();
    let large = Request { body: vec![1; 10 << 20].into(), ..Request::default() };
    pending.push(a.begin(To::Function(&id), &large).unwrap());
    process.kill();
    for pending in pending {
        assert_eq!(a.wait(pending).unwrap_err(), CallError::Died); // no deadline was given: nothing else ends the wait
    }
    drop(a);
    node.until("all slots are back", |usage| usage.slots == 0 && usage.channels == 0 && usage.parties == 0);
    node.stop();
}

#[test]
fn a_gateways_calls_end_too_and_the_other_instance_goes_on() {
    let node = Node::new();
    let mut process = node.process(2, "f", "hang");
    node.until("the first is there", |usage| usage.parties == 1);
    node.gateway(|post| {
        let node = &node;
        async move {
            knows_async(&post, "f").await;
            let id = function("f");
            let calls: Vec<_> = (0..50).map(|_| post.call(To::Function(&id), &body(b"x")).unwrap()).collect();
            process.kill();
            for call in calls {
                assert_eq!(call.await.unwrap_err(), CallError::Died);
            }
            let echo = node.serve(3, "f", |_, incoming| Answer::ok(incoming.body.clone()));
            knows_async(&post, "f").await;
            assert_eq!(post.call(To::Function(&id), &body(b"y")).unwrap().await.unwrap().body, "y");
            node.hub.gone(InstanceId(3));
            echo.join().unwrap();
        }
    });
    node.until("all slots are back", |usage| usage.slots == 0 && usage.channels == 0 && usage.parties == 0);
    node.stop();
}

#[test]
fn slots_come_back_from_callers_that_are_killed() {
    let node = Node::new();
    node.edges(&[("caller", "sink")]);
    let sink = node.serve(1, "sink", |_, incoming| Answer::ok(incoming.body.clone()));
    for round in 0..10 {
        let mut process = node.process(10 + round, "caller", "caller");
        let calls = || {
            let edges = node.runtime.block_on(node.hub.edges());
            edges.iter().map(|edge| edge.taken.answered).sum::<u64>()
        };
        let before = calls();
        while calls() < before + 3 {
            assert!(process.child.try_wait().unwrap().is_none(), "the child failed by itself");
            std::thread::yield_now();
        }
        process.kill();
        node.hub.gone(InstanceId(10 + round));
        node.until("all slots are back", |usage| usage.slots == 0 && usage.channels == 0 && usage.parties == 1);
    }
    node.stop();
    sink.join().unwrap();
}

fn fault(node: &mut Node) -> Fault {
    let Node { runtime, faults, .. } = node;
    runtime.block_on(async { tokio::time::timeout(common::DEADLINE, faults.recv()).await.unwrap().unwrap() })
}

#[test]
fn nonsense_is_disconnected() {
    let mut node = Node::new();
    let hello = |version| FromParty::Hello(Hello { version, serves: true, stands_in: false, bell: Bell::None });
    let spoken: [&dyn Fn(&std::os::fd::OwnedFd); 5] = [
        &|socket| packet::send_bytes(socket, b"GET / HTTP/1.1", &[]).unwrap(),
        &|socket| packet::send(socket, &FromParty::Ready {}, &[]).unwrap(),
        &|socket| packet::send(socket, &hello(7), &[]).unwrap(),
        &|socket| packet::send_bytes(socket, br#"{"ready":{}}"#, &[socket.as_fd(); 4]).unwrap(),
        &|socket| {
            packet::send(socket, &hello(1), &[]).unwrap();
            packet::send_bytes(socket, br#"{"drained":{"channel":1}}"#, &[]).unwrap();
        },
    ];
    for (instance, speak) in spoken.iter().enumerate() {
        let socket = node.socket(instance as u64, "f");
        speak(&socket);
        assert_eq!(fault(&mut node).instance, Some(InstanceId(instance as u64)));
        rustix::io::ioctl_fionbio(&socket, false).unwrap();
        while packet::receive(&socket).unwrap().is_some() {}
    }
    node.until("nobody is left", |usage| usage.parties == 0);
    node.stop();
}

#[test]
fn what_is_not_known_is_passed_over() {
    let node = Node::new();
    let socket = node.socket(1, "f");
    packet::send_bytes(&socket, br#"{"weather":{"rain":true}}"#, &[socket.as_fd()]).unwrap();
    packet::send_bytes(&socket, br#"{"hello":{"version":1,"bell":"none","mood":"good"}}"#, &[]).unwrap();
    rustix::io::ioctl_fionbio(&socket, false).unwrap();
    let welcome = packet::receive(&socket).unwrap().unwrap();
    assert!(matches!(FromNode::read(&welcome.bytes).unwrap(), Some(FromNode::Welcome(_))));
    assert_eq!(welcome.descriptors.len(), 2, "pool and desk");
    node.stop();
}

#[test]
fn a_call_against_the_edge_breaks_the_channel() {
    use nearpath_shm::{Channel, Draft, Envelope, Kind, Knocker, Member, Party, Pool, Side};
    let node = Node::new();
    node.edges(&[("a", "b")]);
    let socket = node.socket(2, "b"); // b speaks by itself, and will not keep to its side
    rustix::io::ioctl_fionbio(&socket, false).unwrap();
    packet::send(
        &socket,
        &FromParty::Hello(Hello { version: 1, serves: true, stands_in: false, bell: Bell::None }),
        &[],
    )
    .unwrap();
    packet::send(&socket, &FromParty::Ready {}, &[]).unwrap();
    let mut a = node.caller(1, "a");
    let next = || {
        let packet = packet::receive(&socket).unwrap().unwrap();
        (FromNode::read(&packet.bytes).unwrap().unwrap(), packet.descriptors.into_iter())
    };
    let (FromNode::Welcome(welcome), mut fds) = next() else { panic!("no welcome") };
    let pool = Pool::open(fds.next().unwrap(), welcome.pool as usize).unwrap();
    let member = Member::new(std::sync::Arc::new(pool), Party::new(welcome.party).unwrap(), u64::MAX);
    let (FromNode::Peer(peer), mut fds) = next() else { panic!("no peer") };
    let channel = Channel::open(fds.next().unwrap(), peer.capacity).unwrap();
    let knocker = Knocker::open(fds.next().unwrap(), fds.next()).unwrap();
    let mut end = channel.end(Side::Callee, member.clone(), Party::new(peer.party).unwrap(), knocker);
    knows(&mut a, "b");
    let pending = a.begin(To::Function(&function("b")), &body(b"x")).unwrap();
    end.send(Draft::new(member.claim(256).unwrap()).finish(Envelope::new(Kind::Call, 1))).unwrap();
    end.flush();
    assert_eq!(a.wait(pending).unwrap_err(), CallError::Died);
    assert!(a.next(Some(std::time::Duration::ZERO)).is_none(), "it was not taken as a call");
    assert_eq!(channel.state(), nearpath_shm::channel::State::Broken);
    node.stop();
}
