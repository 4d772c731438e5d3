//! Processes that are killed in the middle of calls, and strangers that speak nonsense.
use std::os::fd::AsFd;
use std::path::Path;

use super::node::{DEADLINE, DOOR, Mode, Node, ROLE, function, knows, knows_async};
use bytes::Bytes;
use nearpath_domain::hub::Fault;
use nearpath_domain::post::{self, blocking};
use nearpath_domain::protocol::{Bell, FromNode, FromParty, Hello};
use nearpath_domain::{Answer, CallError, Request, To, packet};
use nearpath_shm::channel::State;
use nearpath_shm::{Draft, Envelope, Kind};
use nearpath_types::InstanceId;

use super::stranger::pair;

fn body(bytes: &'static [u8]) -> Request<'static> {
    Request { body: Bytes::from_static(bytes), ..Request::default() }
}

/// What the child does; in the parent this test has nothing to do.
#[test]
fn role() {
    let (Ok(role), Ok(door)) = (std::env::var(ROLE), std::env::var(DOOR)) else { return };
    if role == "source" {
        return super::streams::source(&door);
    }
    let mut post = blocking::Post::dial(Path::new(&door), post::Settings::default()).unwrap();
    match role.as_str() {
        "echo" => post.serve(|_, incoming| Answer::ok(std::mem::take(&mut incoming.body))).unwrap(),
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

pub(crate) fn callers_of_the_dead_hear_of_it_at_once(mode: Mode) {
    let node = Node::new(mode);
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

pub(crate) fn a_gateways_calls_end_too_and_the_other_instance_goes_on(mode: Mode) {
    let node = Node::new(mode);
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

pub(crate) fn slots_come_back_from_callers_that_are_killed(mode: Mode) {
    let node = Node::new(mode);
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

pub(crate) fn fault(node: &mut Node) -> Fault {
    let Node { runtime, faults, .. } = node;
    runtime.block_on(async { tokio::time::timeout(DEADLINE, faults.recv()).await.unwrap().unwrap() })
}

pub(crate) fn nonsense_is_disconnected(mode: Mode) {
    let mut node = Node::new(mode);
    let hello = |version| {
        FromParty::Hello(Hello {
            version,
            serves: true,
            stands_in: false,
            bell: Bell::None,
            delivery: vec![mode],
            isolation: vec![],
        })
    };
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

pub(crate) fn what_is_not_known_is_passed_over(mode: Mode) {
    let node = Node::new(mode);
    let socket = node.socket(1, "f");
    packet::send_bytes(&socket, br#"{"weather":{"rain":true}}"#, &[socket.as_fd()]).unwrap();
    packet::send_bytes(
        &socket,
        br#"{"hello":{"version":1,"bell":"none","mood":"good","delivery":["sockmap","poll"]}}"#,
        &[],
    )
    .unwrap();
    rustix::io::ioctl_fionbio(&socket, false).unwrap();
    let welcome = packet::receive(&socket).unwrap().unwrap();
    assert!(matches!(FromNode::read(&welcome.bytes).unwrap(), Some(FromNode::Welcome(_))));
    let wire = usize::from(mode == Mode::Sockmap);
    assert_eq!(welcome.descriptors.len(), 2 + wire, "pool, desk, and the socket if there is one");
    node.stop();
}

pub(crate) fn a_call_against_the_edge_breaks_the_channel(mode: Mode) {
    let node = Node::new(mode);
    let (mut a, stranger, mut end) = pair(&node, mode); // b speaks by itself, and will not keep to its side
    let pending = a.begin(To::Function(&function("b")), &body(b"x")).unwrap();
    end.send(Draft::new(stranger.member.claim(256).unwrap()).finish(Envelope::new(Kind::Call, 1))).unwrap();
    end.flush();
    assert_eq!(a.wait(pending).unwrap_err(), CallError::Died);
    assert!(a.next(Some(std::time::Duration::ZERO)).is_none(), "it was not taken as a call");
    assert_eq!(end.channel().state(), State::Broken);
    node.stop();
}

/// The node hears of it from the party that found it, and makes another one.
pub(crate) fn a_broken_channel_is_replaced(mode: Mode) {
    let node = Node::new(mode);
    let (mut a, stranger, mut end) = pair(&node, mode);
    let asking = std::thread::spawn(move || {
        let broken = a.call(To::Function(&function("b")), &body(b"x")).unwrap_err();
        knows(&mut a, "b"); // again, over the next one
        (broken, a.call(To::Function(&function("b")), &body(b"y")).unwrap().status)
    });
    let _first = stranger.receive(&mut end);
    end.break_off();
    let gone = packet::receive(&stranger.socket).unwrap().unwrap();
    let Some(FromNode::Gone(gone)) = FromNode::read(&gone.bytes).unwrap() else { panic!("not told") };
    assert_eq!(gone.state, nearpath_domain::protocol::End::Dead);
    drop(end);
    let drained = FromParty::Drained(nearpath_domain::protocol::Drained { channel: gone.channel });
    packet::send(&stranger.socket, &drained, &[]).unwrap();
    let mut end = stranger.meet();
    let call = stranger.receive(&mut end).envelope().call;
    let answer = Envelope { status: 200, ..Envelope::new(Kind::Answer, call) };
    end.send(Draft::new(stranger.member.claim(256).unwrap()).finish(answer)).unwrap();
    end.flush();
    assert_eq!(asking.join().unwrap(), (CallError::Died, 200));
    node.stop();
}
