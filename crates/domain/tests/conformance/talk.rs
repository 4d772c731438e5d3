//! Parties of one process over real sockets and memory: calls, chains, parts, events, cancelling, limits.
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::node::{DEADLINE, Mode, Node, function, joined, knows, knows_async, polled_party};
use bytes::Bytes;
use nearpath_domain::{Answer, CallError, Request, To, Unsent, clock};
use nearpath_types::InstanceId;

fn body(bytes: &'static [u8]) -> Request<'static> {
    Request { body: Bytes::from_static(bytes), ..Request::default() }
}

pub(crate) fn a_chain_of_two(mode: Mode) {
    let node = Node::new(mode);
    node.edges(&[("front", "back")]);
    let back = node.serve(2, "back", |_, incoming| {
        assert_eq!(incoming.caller.function, Some(function("front")));
        assert_eq!(incoming.fields().get(":path"), Some(&b"/x"[..]));
        Answer {
            fields: vec![("x-by".into(), Bytes::from_static(b"back"))],
            ..Answer::ok(incoming.body.to_ascii_uppercase())
        }
    });
    let front = node.serve(1, "front", |post, incoming| {
        knows(post, "back");
        let request = Request { fields: &[(":path", b"/x")], body: incoming.body.clone(), ..Request::default() };
        let reply = post.call(To::Function(&function("back")), &request).unwrap();
        assert_eq!(reply.fields().get("x-by"), Some(&b"back"[..]));
        assert_eq!(reply.from, InstanceId(2));
        Answer::ok(reply.body)
    });
    node.gateway(|post| async move {
        knows_async(&post, "front").await;
        for _ in 0..100 {
            let reply = post.call(To::Function(&function("front")), &body(b"near")).unwrap().await.unwrap();
            assert_eq!((reply.status, reply.body.as_ref()), (200, &b"NEAR"[..]));
        }
    });
    node.until("all slots are back", |usage| usage.slots == 0);
    let edges = node.runtime.block_on(node.hub.edges());
    let inner = edges.iter().find(|edge| edge.caller == Some(function("front"))).unwrap();
    assert_eq!((inner.made.answered, inner.taken.answered, inner.made.in_flight), (100, 100, 0));
    let outer = edges.iter().find(|edge| edge.caller.is_none() && edge.callee == Some(function("front"))).unwrap();
    assert_eq!(outer.made.messages, 100, "the gateway has left, its counts stay");
    node.stop();
    joined([front, back]);
}

pub(crate) fn what_is_not_declared_does_not_exist(mode: Mode) {
    let node = Node::new(mode);
    node.edges(&[("a", "b")]);
    let b = node.serve(2, "b", |post, _| {
        let back = post.call(To::Function(&function("a")), &body(b"back"));
        assert_eq!(back.unwrap_err(), CallError::Unsent(Unsent::NoPeer));
        Answer::ok("b")
    });
    let c = node.serve(3, "c", |_, _| Answer::ok("c"));
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    assert_eq!(a.functions(), [function("b")]);
    assert_eq!(a.call(To::Function(&function("c")), &body(b"")).unwrap_err(), CallError::Unsent(Unsent::NoPeer));
    assert_eq!(a.call(To::Instance(InstanceId(3)), &body(b"")).unwrap_err(), CallError::Unsent(Unsent::NoPeer));
    assert_eq!(a.call(To::Instance(InstanceId(2)), &body(b"")).unwrap().body, "b");
    node.edges(&[("a", "c")]);
    knows(&mut a, "c");
    assert_eq!(a.functions(), [function("c")], "an edge that is no longer declared is no more");
    node.stop();
    joined([b, c]);
}

pub(crate) fn ten_megabytes_both_ways(mode: Mode) {
    let node = Node::new(mode);
    node.edges(&[("a", "b")]);
    let server = node.serve(2, "b", |_, incoming| {
        let mut body = incoming.body.to_vec();
        body.reverse();
        Answer::ok(body)
    });
    let sent: Vec<u8> = (0..10_000_003u32).map(|n| (n % 251) as u8).collect();
    let mut expected = sent.clone();
    expected.reverse();
    let request = Request { body: sent.into(), ..Request::default() };
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    let reply = a.call(To::Function(&function("b")), &request).unwrap();
    assert!(reply.body == expected, "blocking");
    let got = node.gateway(|post| {
        let request = request.clone();
        async move {
            knows_async(&post, "b").await;
            let id = function("b");
            let calls = [post.call(To::Function(&id), &request).unwrap()];
            let mut bodies = Vec::new();
            for call in calls {
                bodies.push(call.await.unwrap().body);
            }
            bodies
        }
    });
    assert!(got.iter().all(|body| *body == expected), "polled");
    drop((got, reply, a));
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    server.join().unwrap();
}

pub(crate) fn thousands_at_once_over_two_instances(mode: Mode) {
    let node = Node::new(mode);
    let counts: [Arc<AtomicUsize>; 2] = Default::default();
    let servers = [0, 1].map(|k| {
        let count = Arc::clone(&counts[k]);
        node.serve(k as u64 + 1, "echo", move |_, incoming| {
            count.fetch_add(1, Ordering::Relaxed);
            Answer::ok(incoming.body.clone())
        })
    });
    node.until("both are connected", |usage| usage.parties == 2);
    node.gateway(|post| async move {
        knows_async(&post, "echo").await;
        let done = Rc::new(Cell::new(0));
        let tasks: Vec<_> = (0..5000u32)
            .map(|n| {
                let (post, done) = (post.clone(), Rc::clone(&done));
                tokio::task::spawn_local(async move {
                    let request = Request { body: n.to_le_bytes().to_vec().into(), ..Request::default() };
                    let call = loop {
                        match post.call(To::Function(&function("echo")), &request) {
                            Ok(call) => break call,
                            Err(Unsent::NoCredit) => tokio::task::yield_now().await,
                            Err(why) => panic!("{why}"),
                        }
                    };
                    assert_eq!(call.await.unwrap().body, n.to_le_bytes().as_slice());
                    done.set(done.get() + 1);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(done.get(), 5000);
    });
    let counts = counts.map(|count| count.load(Ordering::Relaxed));
    assert_eq!(counts.iter().sum::<usize>(), 5000);
    assert!(counts.iter().all(|&count| count > 500), "both take their share: {counts:?}");
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    servers.into_iter().for_each(|server| server.join().unwrap());
}

pub(crate) fn who_waits_receives_for_others(mode: Mode) {
    // b is called by a; while b's handler calls c, c's handler calls b again: a circle that a party must not hang in.
    let node = Node::new(mode);
    node.edges(&[("a", "b"), ("b", "c"), ("a", "c")]);
    let c = node.serve(3, "c", |_, incoming| Answer::ok(incoming.body.clone()));
    let b = node.serve(2, "b", |post, incoming| {
        knows(post, "c");
        Answer::ok(
            post.call(To::Function(&function("c")), &Request { body: incoming.body.clone(), ..Request::default() })
                .unwrap()
                .body,
        )
    });
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    knows(&mut a, "c");
    let ids = [function("b"), function("c")];
    let pending: Vec<_> = (0..200).map(|n| a.begin(To::Function(&ids[n % 2]), &body(b"fan")).unwrap()).collect();
    for pending in pending.into_iter().rev() {
        assert_eq!(a.wait(pending).unwrap().body, "fan", "in any order");
    }
    node.stop();
    joined([b, c]);
}

pub(crate) fn events_go_one_way(mode: Mode) {
    let node = Node::new(mode);
    node.edges(&[("a", "b")]);
    let (seen, sees) = std::sync::mpsc::channel();
    let b = node.serve(2, "b", move |_, incoming| {
        assert!(incoming.event);
        seen.send(incoming.body.len()).unwrap();
        Answer::ok("nobody hears this")
    });
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    a.notify(To::Function(&function("b")), &body(b"12345")).unwrap();
    assert_eq!(sees.recv_timeout(DEADLINE).unwrap(), 5);
    drop(a);
    node.until("all slots are back", |usage| usage.slots == 0 && usage.parties == 1);
    node.stop();
    b.join().unwrap();
}

pub(crate) fn a_deadline_ends_the_wait_and_tells_the_peer(mode: Mode) {
    let node = Node::new(mode);
    node.edges(&[("a", "b")]);
    let ((took, takes), (told, tells)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let socket = node.socket(2, "b");
    let b = std::thread::spawn(move || {
        polled_party(socket, true, |post| async move {
            post.ready().unwrap();
            while let Some(received) = post.next().await {
                let _ = took.send(());
                received.given_up().await;
                let _ = told.send(());
            }
        });
    });
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    // A call that is given up before its handler has it is not handed to it: so ask until one was.
    let end = clock::within(DEADLINE);
    while tells.try_recv().is_err() {
        let request = Request { deadline: clock::within(Duration::from_millis(30)), ..body(b"slow") };
        assert_eq!(a.call(To::Function(&function("b")), &request).unwrap_err(), CallError::Timeout);
        assert!(clock::now() < end, "the handler never heard of it");
    }
    drop(a);
    let takes = node.gateway(|post| async move {
        knows_async(&post, "b").await;
        let late = Request { deadline: clock::within(Duration::from_millis(30)), ..body(b"slow") };
        let call = post.call(To::Function(&function("b")), &late).unwrap();
        assert_eq!(call.await.unwrap_err(), CallError::Timeout);
        while takes.try_recv().is_ok() {}
        let dropped = post.call(To::Function(&function("b")), &body(b"dropped")).unwrap();
        tokio::task::yield_now().await; // the driver rings
        takes.recv_timeout(DEADLINE).unwrap();
        drop(dropped);
        takes
    });
    tells.recv_timeout(DEADLINE).unwrap();
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    b.join().unwrap();
    drop(takes);
}

pub(crate) fn more_calls_than_credits_are_not_sent(mode: Mode) {
    let mut settings = nearpath_domain::hub::Settings::named("small");
    settings.capacity = 16;
    let node = Node::with(mode, settings);
    node.edges(&[("a", "b")]);
    let (go, goes) = std::sync::mpsc::channel::<()>();
    let b = node.serve(2, "b", move |_, _| {
        let _ = goes.recv();
        Answer::ok("at last")
    });
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    let id = function("b");
    let pending: Vec<_> = (0..16).map(|_| a.begin(To::Function(&id), &body(b"x")).unwrap()).collect();
    assert_eq!(a.begin(To::Function(&id), &body(b"x")).unwrap_err(), Unsent::NoCredit);
    let mut pending = pending.into_iter();
    a.cancel(pending.next_back().unwrap());
    (0..16).for_each(|_| go.send(()).unwrap());
    for pending in pending {
        assert_eq!(a.wait(pending).unwrap().body, "at last");
    }
    let end = clock::within(DEADLINE);
    while a.begin(To::Function(&id), &body(b"y")).map(|again| a.cancel(again)).is_err() {
        assert!(clock::now() < end, "the cancelled call's credit never came back");
    }
    drop(go);
    drop(a);
    drop(node);
    let _ = b.join();
}

pub(crate) fn a_withdrawn_instance_finishes_what_it_has(mode: Mode) {
    let node = Node::new(mode);
    node.edges(&[("a", "b")]);
    let (go, goes) = std::sync::mpsc::channel::<()>();
    let (taken, takes) = std::sync::mpsc::channel();
    let b = node.serve(2, "b", move |_, _| {
        taken.send(()).unwrap();
        goes.recv().unwrap();
        Answer::ok("done")
    });
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    let pending = a.begin(To::Function(&function("b")), &body(b"x")).unwrap();
    takes.recv_timeout(DEADLINE).unwrap();
    let hub = node.hub.clone();
    let withdrawn = node.runtime.spawn(async move { hub.withdraw(InstanceId(2)).await });
    while a.functions().contains(&function("b")) {
        std::thread::yield_now();
    }
    assert!(!withdrawn.is_finished(), "a call is open");
    go.send(()).unwrap();
    assert_eq!(a.wait(pending).unwrap().body, "done");
    let _ = a.functions(); // says that it is drained
    node.runtime.block_on(async { tokio::time::timeout(DEADLINE, withdrawn).await.unwrap().unwrap() });
    node.until("the channel is gone", |usage| usage.channels == 0);
    node.stop();
    b.join().unwrap();
}

pub(crate) fn an_answer_that_cannot_be_written_is_an_error(mode: Mode) {
    let node = Node::new(mode);
    node.edges(&[("a", "b")]);
    let b = node.serve(2, "b", |_, _| Answer {
        fields: vec![("x-split".into(), Bytes::from_static(b"a\r\nb: c"))],
        ..Answer::ok("fine")
    });
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    let id = function("b");
    let pending: Vec<_> = (0..20).map(|_| a.begin(To::Function(&id), &body(b"x")).unwrap()).collect();
    for pending in pending {
        let reply = a.wait(pending).unwrap();
        assert_eq!((reply.status, reply.platform), (502, true));
    }
    node.stop();
    b.join().unwrap();
}

pub(crate) fn too_large_is_said(mode: Mode) {
    let node = Node::new(mode);
    node.edges(&[("a", "b")]);
    let b = node.serve(2, "b", |_, _| Answer::ok(vec![7; 70 << 20]));
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    let to = function("b");
    assert!(matches!(a.call(To::Function(&to), &body(b"")), Err(CallError::BadAnswer(_))));
    let head = vec![b'x'; 60_000];
    let fields: [(&str, &[u8]); 2] = [("a", &head), ("b", &head)];
    let large = Request { fields: &fields, ..Request::default() };
    assert_eq!(a.call(To::Function(&to), &large).unwrap_err(), CallError::Unsent(Unsent::Head));
    let reply = a.call(To::Function(&to), &Request { body: vec![1; 70 << 20].into(), ..Request::default() }).unwrap();
    assert_eq!((reply.status, reply.platform), (413, true));
    node.stop();
    b.join().unwrap();
}
