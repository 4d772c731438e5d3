//! Endpoints of one process over real sockets and memory: calls, chains, parts, events, cancelling,
//! limits.
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::node::{
    DeliveryMode, TEST_TIMEOUT, TestNode, function, joined, knows, knows_async, polled_endpoint,
};
use bytes::Bytes;
use nearpath_domain::{CallDestination, CallError, CallRequest, CallResponse, UnsentReason, clock};
use nearpath_types::InstanceId;

fn body(bytes: &'static [u8]) -> CallRequest<'static> {
    CallRequest {
        body: Bytes::from_static(bytes),
        ..CallRequest::default()
    }
}

pub(crate) fn a_chain_of_two_functions_answers(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("front", "back")]);
    let back = node.serve(2, "back", |_, incoming| {
        assert_eq!(incoming.caller.function, Some(function("front")));
        assert_eq!(incoming.head_fields().get(":path"), Some(&b"/x"[..]));
        CallResponse {
            fields: vec![("x-by".into(), Bytes::from_static(b"back"))],
            ..CallResponse::ok(incoming.body.to_ascii_uppercase())
        }
    });
    let front = node.serve(1, "front", |endpoint, incoming| {
        knows(endpoint, "back");
        let request = CallRequest {
            fields: &[(":path", b"/x")],
            body: incoming.body.clone(),
            ..CallRequest::default()
        };
        let reply = endpoint
            .call(CallDestination::Function(&function("back")), &request)
            .unwrap();
        assert_eq!(reply.head_fields().get("x-by"), Some(&b"back"[..]));
        assert_eq!(reply.answered_by, InstanceId(2));
        CallResponse::ok(reply.body)
    });
    node.gateway(|endpoint| async move {
        knows_async(&endpoint, "front").await;
        for _ in 0..100 {
            let reply = endpoint
                .call(
                    CallDestination::Function(&function("front")),
                    &body(b"near"),
                )
                .unwrap()
                .await
                .unwrap();
            assert_eq!((reply.status, reply.body.as_ref()), (200, &b"NEAR"[..]));
        }
    });
    node.until("all slots are back", |usage| usage.slots == 0);
    let edges = node.runtime.block_on(node.hub.read_edges());
    let inner = edges
        .iter()
        .find(|edge| edge.caller == Some(function("front")))
        .unwrap();
    assert_eq!(
        (
            inner.by_caller.answered,
            inner.by_callee.answered,
            inner.by_caller.in_flight
        ),
        (100, 100, 0)
    );
    let outer = edges
        .iter()
        .find(|edge| edge.caller.is_none() && edge.callee == Some(function("front")))
        .unwrap();
    assert_eq!(
        outer.by_caller.messages, 100,
        "the gateway has left, its counts stay"
    );
    node.stop();
    joined([front, back]);
}

pub(crate) fn an_undeclared_edge_cannot_be_called(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "b")]);
    let b = node.serve(2, "b", |endpoint, _| {
        let back = endpoint.call(CallDestination::Function(&function("a")), &body(b"back"));
        assert_eq!(back.unwrap_err(), CallError::Unsent(UnsentReason::NoPeer));
        CallResponse::ok("b")
    });
    let c = node.serve(3, "c", |_, _| CallResponse::ok("c"));
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    assert_eq!(a.callable_functions(), [function("b")]);
    assert_eq!(
        a.call(CallDestination::Function(&function("c")), &body(b""))
            .unwrap_err(),
        CallError::Unsent(UnsentReason::NoPeer)
    );
    assert_eq!(
        a.call(CallDestination::Instance(InstanceId(3)), &body(b""))
            .unwrap_err(),
        CallError::Unsent(UnsentReason::NoPeer)
    );
    assert_eq!(
        a.call(CallDestination::Instance(InstanceId(2)), &body(b""))
            .unwrap()
            .body,
        "b"
    );
    node.edges(&[("a", "c")]);
    knows(&mut a, "c");
    assert_eq!(
        a.callable_functions(),
        [function("c")],
        "an edge that is no longer declared is no more"
    );
    node.stop();
    joined([b, c]);
}

pub(crate) fn ten_megabytes_both_ways(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "b")]);
    let server = node.serve(2, "b", |_, incoming| {
        let mut body = incoming.body.to_vec();
        body.reverse();
        CallResponse::ok(body)
    });
    let sent: Vec<u8> = (0..10_000_003u32).map(|n| (n % 251) as u8).collect();
    let mut expected = sent.clone();
    expected.reverse();
    let request = CallRequest {
        body: sent.into(),
        ..CallRequest::default()
    };
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    let reply = a
        .call(CallDestination::Function(&function("b")), &request)
        .unwrap();
    assert!(reply.body == expected, "blocking");
    let got = node.gateway(|endpoint| {
        let request = request.clone();
        async move {
            knows_async(&endpoint, "b").await;
            let id = function("b");
            let calls = [endpoint
                .call(CallDestination::Function(&id), &request)
                .unwrap()];
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

pub(crate) fn thousands_of_calls_are_spread_over_two_instances(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    let counts: [Arc<AtomicUsize>; 2] = Default::default();
    let servers = [0, 1].map(|k| {
        let count = Arc::clone(&counts[k]);
        node.serve(k as u64 + 1, "echo", move |_, incoming| {
            count.fetch_add(1, Ordering::Relaxed);
            CallResponse::ok(incoming.body.clone())
        })
    });
    node.until("both are connected", |usage| usage.endpoints == 2);
    node.gateway(|endpoint| async move {
        knows_async(&endpoint, "echo").await;
        let done = Rc::new(Cell::new(0));
        let tasks: Vec<_> = (0..5000u32)
            .map(|n| {
                let (endpoint, done) = (endpoint.clone(), Rc::clone(&done));
                tokio::task::spawn_local(async move {
                    let request = CallRequest {
                        body: n.to_le_bytes().to_vec().into(),
                        ..CallRequest::default()
                    };
                    let call = loop {
                        match endpoint.call(CallDestination::Function(&function("echo")), &request)
                        {
                            Ok(call) => break call,
                            Err(UnsentReason::NoCredit) => tokio::task::yield_now().await,
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
    assert!(
        counts.iter().all(|&count| count > 500),
        "both take their share: {counts:?}"
    );
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    servers
        .into_iter()
        .for_each(|server| server.join().unwrap());
}

pub(crate) fn an_endpoint_that_waits_still_receives_calls(mode: DeliveryMode) {
    // b is called by a; while b's handler calls c, c's handler calls b again: a circle that an
    // endpoint must not hang in.
    let node = TestNode::new(mode);
    node.edges(&[("a", "b"), ("b", "c"), ("a", "c")]);
    let c = node.serve(3, "c", |_, incoming| {
        CallResponse::ok(incoming.body.clone())
    });
    let b = node.serve(2, "b", |endpoint, incoming| {
        knows(endpoint, "c");
        CallResponse::ok(
            endpoint
                .call(
                    CallDestination::Function(&function("c")),
                    &CallRequest {
                        body: incoming.body.clone(),
                        ..CallRequest::default()
                    },
                )
                .unwrap()
                .body,
        )
    });
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    knows(&mut a, "c");
    let ids = [function("b"), function("c")];
    let pending: Vec<_> = (0..200)
        .map(|n| {
            a.begin_call(CallDestination::Function(&ids[n % 2]), &body(b"fan"))
                .unwrap()
        })
        .collect();
    for pending in pending.into_iter().rev() {
        assert_eq!(
            a.wait_response(pending).unwrap().body,
            "fan",
            "in any order"
        );
    }
    node.stop();
    joined([b, c]);
}

pub(crate) fn events_have_no_response(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "b")]);
    let (seen, sees) = std::sync::mpsc::channel();
    let b = node.serve(2, "b", move |_, incoming| {
        assert!(incoming.is_event);
        seen.send(incoming.body.len()).unwrap();
        CallResponse::ok("nobody hears this")
    });
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    a.send_event(CallDestination::Function(&function("b")), &body(b"12345"))
        .unwrap();
    assert_eq!(sees.recv_timeout(TEST_TIMEOUT).unwrap(), 5);
    drop(a);
    node.until("all slots are back", |usage| {
        usage.slots == 0 && usage.endpoints == 1
    });
    node.stop();
    b.join().unwrap();
}

pub(crate) fn a_deadline_ends_the_wait_and_cancels_at_the_peer(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "b")]);
    let ((took, takes), (told, tells)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let socket = node.socket(2, "b");
    let b = std::thread::spawn(move || {
        polled_endpoint(socket, true, |endpoint| async move {
            endpoint.announce_ready().unwrap();
            while let Some(received) = endpoint.next_incoming().await {
                let _ = took.send(());
                received.given_up().await;
                let _ = told.send(());
            }
        });
    });
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    // A call that is given up before its handler has it is not handed to it: so ask until one was.
    let end = clock::deadline_after(TEST_TIMEOUT);
    while tells.try_recv().is_err() {
        let request = CallRequest {
            deadline: clock::deadline_after(Duration::from_millis(30)),
            ..body(b"slow")
        };
        assert_eq!(
            a.call(CallDestination::Function(&function("b")), &request)
                .unwrap_err(),
            CallError::Timeout
        );
        assert!(
            clock::monotonic_now() < end,
            "the handler never heard of it"
        );
    }
    drop(a);
    let takes = node.gateway(|endpoint| async move {
        knows_async(&endpoint, "b").await;
        let late = CallRequest {
            deadline: clock::deadline_after(Duration::from_millis(30)),
            ..body(b"slow")
        };
        let call = endpoint
            .call(CallDestination::Function(&function("b")), &late)
            .unwrap();
        assert_eq!(call.await.unwrap_err(), CallError::Timeout);
        while takes.try_recv().is_ok() {}
        let dropped = endpoint
            .call(CallDestination::Function(&function("b")), &body(b"dropped"))
            .unwrap();
        tokio::task::yield_now().await; // the driver rings
        takes.recv_timeout(TEST_TIMEOUT).unwrap();
        drop(dropped);
        takes
    });
    tells.recv_timeout(TEST_TIMEOUT).unwrap();
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    b.join().unwrap();
    drop(takes);
}

pub(crate) fn calls_beyond_the_credit_are_not_sent(mode: DeliveryMode) {
    let mut settings = nearpath_domain::node_side::DomainSettings::named("small");
    settings.ring_capacity = 16;
    let node = TestNode::with(mode, settings);
    node.edges(&[("a", "b")]);
    let (go, goes) = std::sync::mpsc::channel::<()>();
    let b = node.serve(2, "b", move |_, _| {
        let _ = goes.recv();
        CallResponse::ok("at last")
    });
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    let id = function("b");
    let pending: Vec<_> = (0..16)
        .map(|_| {
            a.begin_call(CallDestination::Function(&id), &body(b"x"))
                .unwrap()
        })
        .collect();
    assert_eq!(
        a.begin_call(CallDestination::Function(&id), &body(b"x"))
            .unwrap_err(),
        UnsentReason::NoCredit
    );
    let mut pending = pending.into_iter();
    a.cancel_call(pending.next_back().unwrap());
    (0..16).for_each(|_| go.send(()).unwrap());
    for pending in pending {
        assert_eq!(a.wait_response(pending).unwrap().body, "at last");
    }
    let end = clock::deadline_after(TEST_TIMEOUT);
    while a
        .begin_call(CallDestination::Function(&id), &body(b"y"))
        .map(|again| a.cancel_call(again))
        .is_err()
    {
        assert!(
            clock::monotonic_now() < end,
            "the cancelled call's credit never came back"
        );
    }
    drop(go);
    drop(a);
    drop(node);
    let _ = b.join();
}

pub(crate) fn a_withdrawn_instance_finishes_its_open_calls(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "b")]);
    let (go, goes) = std::sync::mpsc::channel::<()>();
    let (taken, takes) = std::sync::mpsc::channel();
    let b = node.serve(2, "b", move |_, _| {
        taken.send(()).unwrap();
        goes.recv().unwrap();
        CallResponse::ok("done")
    });
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    let pending = a
        .begin_call(CallDestination::Function(&function("b")), &body(b"x"))
        .unwrap();
    takes.recv_timeout(TEST_TIMEOUT).unwrap();
    let hub = node.hub.clone();
    let withdrawn = node
        .runtime
        .spawn(async move { hub.withdraw_instance(InstanceId(2)).await });
    nearpath_testkit::eventually_blocking("b is withdrawn", || {
        !a.callable_functions().contains(&function("b"))
    });
    assert!(!withdrawn.is_finished(), "a call is open");
    go.send(()).unwrap();
    assert_eq!(a.wait_response(pending).unwrap().body, "done");
    let _ = a.callable_functions(); // says that it is drained
    node.runtime.block_on(async {
        tokio::time::timeout(TEST_TIMEOUT, withdrawn)
            .await
            .unwrap()
            .unwrap()
    });
    node.until("the channel is gone", |usage| usage.channels == 0);
    node.stop();
    b.join().unwrap();
}

pub(crate) fn a_response_with_an_invalid_head_becomes_an_error(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "b")]);
    let b = node.serve(2, "b", |_, _| CallResponse {
        fields: vec![("x-split".into(), Bytes::from_static(b"a\r\nb: c"))],
        ..CallResponse::ok("fine")
    });
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    let id = function("b");
    let pending: Vec<_> = (0..20)
        .map(|_| {
            a.begin_call(CallDestination::Function(&id), &body(b"x"))
                .unwrap()
        })
        .collect();
    for pending in pending {
        let reply = a.wait_response(pending).unwrap();
        assert_eq!(reply.status, 502);
    }
    node.stop();
    b.join().unwrap();
}

pub(crate) fn bodies_above_the_limit_are_reported(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "b")]);
    let b = node.serve(2, "b", |_, _| CallResponse::ok(vec![7; 70 << 20]));
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    let to = function("b");
    assert!(matches!(
        a.call(CallDestination::Function(&to), &body(b"")),
        Err(CallError::BadAnswer(_))
    ));
    let head = vec![b'x'; 60_000];
    let fields: [(&str, &[u8]); 2] = [("a", &head), ("b", &head)];
    let large = CallRequest {
        fields: &fields,
        ..CallRequest::default()
    };
    assert_eq!(
        a.call(CallDestination::Function(&to), &large).unwrap_err(),
        CallError::Unsent(UnsentReason::BadHead)
    );
    let reply = a
        .call(
            CallDestination::Function(&to),
            &CallRequest {
                body: vec![1; 70 << 20].into(),
                ..CallRequest::default()
            },
        )
        .unwrap();
    assert_eq!(reply.status, 413);
    node.stop();
    b.join().unwrap();
}
