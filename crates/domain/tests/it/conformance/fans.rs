//! Several calls at once, events by name and by topic, and names that are not the function's own.
use std::collections::BTreeSet;
use std::sync::mpsc;
use std::time::Duration;

use super::node::{
    DeliveryMode, TEST_TIMEOUT, TestNode, function, joined, knows, knows_async,
    polled_endpoint_with,
};
use bytes::Bytes;
use nearpath_domain::endpoint::{EndpointSettings, PublishReport, polled};
use nearpath_domain::protocol::EdgeTerms;
use nearpath_domain::{CallDestination, CallError, CallRequest, CallResponse, UnsentReason, clock};
use nearpath_types::FunctionId;

fn body(bytes: &'static [u8]) -> CallRequest<'static> {
    CallRequest {
        body: Bytes::from_static(bytes),
        ..CallRequest::default()
    }
}

fn edge(caller: &str, callee: &str, terms: EdgeTerms) -> ((FunctionId, FunctionId), EdgeTerms) {
    ((function(caller), function(callee)), terms)
}

fn topics(filters: &[&str]) -> EdgeTerms {
    EdgeTerms {
        topics: filters.iter().map(ToString::to_string).collect(),
        ..EdgeTerms::default()
    }
}

pub(crate) fn parallel_calls_return_in_order_when_one_fails(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "worker"), ("a", "hang")]);
    let workers = [1, 2].map(|n| {
        node.serve(n, "worker", |_, incoming| {
            CallResponse::ok(incoming.body.to_ascii_uppercase())
        })
    });
    let mut hang = node.process(3, "hang", "hang");
    let mut a = node.caller(9, "a");
    ["worker", "hang"]
        .iter()
        .for_each(|name| knows(&mut a, name));
    let (worker, hanging) = (function("worker"), function("hang"));
    let end = clock::deadline_after(TEST_TIMEOUT);
    let mut by = BTreeSet::new();
    while by.len() < 2 {
        by.insert(
            a.call(CallDestination::Function(&worker), &body(b"who"))
                .unwrap()
                .answered_by,
        );
        assert!(
            clock::monotonic_now() < end,
            "both instances have their share"
        );
    }
    let parts: [&[u8]; 5] = [b"one", b"two", b"three", b"four", b"five"];
    let mut pending: Vec<_> = parts
        .iter()
        .map(|part| {
            a.begin_call(CallDestination::Function(&worker), &body(part))
                .unwrap()
        })
        .collect();
    pending.insert(
        2,
        a.begin_call(CallDestination::Function(&hanging), &body(b"lost"))
            .unwrap(),
    );
    hang.kill();
    let outcomes = a.wait_all(pending);
    let bodies: Vec<_> = outcomes
        .iter()
        .map(|outcome| outcome.as_ref().map(|reply| &**reply.body))
        .collect();
    let expected = [
        Ok(&b"ONE"[..]),
        Ok(b"TWO"),
        Err(&CallError::PeerDied),
        Ok(b"THREE"),
        Ok(b"FOUR"),
        Ok(b"FIVE"),
    ];
    assert_eq!(bodies, expected);
    drop((outcomes, a));
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    joined(workers);
}

pub(crate) fn the_first_of_several_responses_is_returned_early(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    let (go, goes) = mpsc::channel::<()>();
    let quick = node.serve(1, "quick", |_, _| CallResponse::ok("quick"));
    let slow = node.serve(2, "slow", move |_, _| {
        goes.recv().unwrap();
        CallResponse::ok("slow")
    });
    node.edges(&[("a", "quick"), ("a", "slow")]);
    let mut a = node.caller(3, "a");
    ["quick", "slow"]
        .iter()
        .for_each(|name| knows(&mut a, name));
    let (first, second) = (function("slow"), function("quick"));
    let mut pending = vec![
        a.begin_call(CallDestination::Function(&first), &body(b""))
            .unwrap(),
        a.begin_call(CallDestination::Function(&second), &body(b""))
            .unwrap(),
    ];
    let (at, outcome) = a.wait_any(&mut pending).unwrap();
    assert_eq!((at, outcome.unwrap().body.as_ref()), (1, &b"quick"[..]));
    go.send(()).unwrap();
    assert_eq!(a.wait_any(&mut pending).unwrap().1.unwrap().body, "slow");
    assert!(a.wait_any(&mut pending).is_none());
    node.gateway(|endpoint| async move {
        knows_async(&endpoint, "quick").await;
        knows_async(&endpoint, "slow").await;
        let call = |to: &FunctionId| {
            endpoint
                .call(CallDestination::Function(to), &body(b""))
                .unwrap()
        };
        let mut calls = vec![call(&first), call(&second)];
        let (at, outcome) = polled::wait_any(&mut calls).await.unwrap();
        assert_eq!((at, outcome.unwrap().body.as_ref()), (1, &b"quick"[..]));
        go.send(()).unwrap();
        let rest = polled::wait_all(calls).await;
        assert_eq!(rest[0].as_ref().unwrap().body, "slow");
    });
    node.stop();
    joined([quick, slow]);
}

pub(crate) fn a_topic_reaches_each_subscriber_once(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    let (seen, sees) = mpsc::channel();
    let serve = |instance, name: &'static str| {
        let seen = seen.clone();
        node.serve(instance, name, move |_, incoming| {
            let topic =
                String::from_utf8(incoming.head_fields().get(":name").unwrap().to_vec()).unwrap();
            seen.send((name, topic, incoming.is_event, incoming.body.len()))
                .unwrap();
            CallResponse::default()
        })
    };
    let mail = [serve(1, "mail"), serve(2, "mail")];
    let others = [serve(3, "audit"), serve(4, "bystander")];
    node.hub.declare_edges_with([
        edge(
            "shop",
            "mail",
            EdgeTerms {
                events_only: true,
                ..topics(&["order/placed", "ready"])
            },
        ),
        edge("shop", "audit", topics(&["order/+", "order/#"])),
        edge("shop", "bystander", EdgeTerms::default()),
    ]);
    let mut shop = node.caller(9, "shop");
    ["audit", "bystander"]
        .iter()
        .for_each(|name| knows(&mut shop, name));
    nearpath_testkit::eventually_blocking("mail is known", || {
        shop.publish_event("ready", &body(b"")).sent > 0
    });
    assert_eq!(
        sees.recv_timeout(TEST_TIMEOUT).unwrap(),
        ("mail", "ready".to_owned(), true, 0)
    );
    let published = shop.publish_event("order/placed", &body(b"12345"));
    assert_eq!((published.sent, published.missed), (2, 0));
    let both: BTreeSet<_> = (0..2)
        .map(|_| sees.recv_timeout(TEST_TIMEOUT).unwrap())
        .collect();
    let seen = |name| (name, "order/placed".to_owned(), true, 5);
    assert_eq!(
        both,
        BTreeSet::from([seen("mail"), seen("audit")]),
        "one instance of each function"
    );
    assert_eq!(shop.publish_event("order/cancelled", &body(b"1")).sent, 1);
    assert_eq!(sees.recv_timeout(TEST_TIMEOUT).unwrap().0, "audit");
    let unsent = shop
        .call(CallDestination::Function(&function("mail")), &body(b""))
        .unwrap_err();
    assert_eq!(
        unsent,
        CallError::Unsent(UnsentReason::NoPeer),
        "an edge for events is none for calls"
    );
    drop(shop);
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    assert!(sees.try_recv().is_err(), "no function got more");
    joined(mail);
    joined(others);
}

pub(crate) fn the_gateway_takes_events_for_other_nodes(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    let to_gateway = EdgeTerms {
        events_only: true,
        ..topics(&["order/+"])
    };
    let edge_to_gateway = (function("shop"), None::<FunctionId>);
    node.hub.declare_edges_with([(edge_to_gateway, to_gateway)]);
    let mut shop = node.caller(1, "shop");
    let publishing = std::thread::spawn(move || {
        let one = PublishReport { sent: 1, missed: 0 };
        // Until the gateway has joined, no channel leads to it.
        while shop.publish_event("order/placed", &body(b"7")) != one {
            shop.next_incoming(Some(Duration::from_millis(1)));
        }
        let none = shop.publish_event("stock/empty", &body(b""));
        assert_eq!(none, PublishReport::default());
        let large = CallRequest {
            body: vec![0; 3_000_000].into(),
            ..CallRequest::default()
        };
        assert_eq!(shop.publish_event("order/placed", &large), one);
        // It sends the parts while it waits.
        shop.next_incoming(Some(Duration::from_secs(30)));
    });
    let socket = node.hub.gateway_socket().unwrap();
    let settings = EndpointSettings {
        max_body_bytes: 70_000,
        forwards_events: true,
        ..EndpointSettings::default()
    };
    let received = polled_endpoint_with(socket, settings, |endpoint| async move {
        endpoint.announce_ready().unwrap();
        let event = endpoint.next_incoming().await.unwrap();
        let topic = event.head_fields().get(":name").unwrap().to_vec();
        let caller = event.caller.function.clone().unwrap();
        let refused = endpoint.next_incoming().await.unwrap();
        assert!(
            refused.is_event && refused.body.is_empty(),
            "it is too large"
        );
        assert!(refused.head_fields().get(":name").is_none());
        (event.is_event, topic, caller, event.body.to_vec())
    });
    let expected = (
        true,
        b"order/placed".to_vec(),
        function("shop"),
        b"7".to_vec(),
    );
    assert_eq!(received, expected);
    node.stop();
    publishing.join().unwrap();
}

pub(crate) fn an_alias_is_a_name_of_one_caller(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.hub.declare_edges_with([
        edge(
            "a",
            "currency",
            EdgeTerms {
                aliases: vec![function("rates")],
                ..EdgeTerms::default()
            },
        ),
        edge("b", "currency", EdgeTerms::default()),
    ]);
    let server = node.serve(1, "currency", |_, _| CallResponse::ok("1.09"));
    let (mut a, mut b) = (node.caller(2, "a"), node.caller(3, "b"));
    knows(&mut a, "currency");
    knows(&mut b, "currency");
    assert_eq!(
        a.call(CallDestination::Function(&function("rates")), &body(b""))
            .unwrap()
            .body,
        "1.09"
    );
    let unknown = b
        .call(CallDestination::Function(&function("rates")), &body(b""))
        .unwrap_err();
    assert_eq!(unknown, CallError::Unsent(UnsentReason::NoPeer));
    node.hub.declare_edges_with([edge(
        "a",
        "currency",
        EdgeTerms {
            aliases: vec![function("fx")],
            ..EdgeTerms::default()
        },
    )]);
    knows(&mut a, "fx");
    assert_eq!(
        a.call(CallDestination::Function(&function("fx")), &body(b""))
            .unwrap()
            .body,
        "1.09",
        "terms that change begin anew"
    );
    assert!(
        a.call(CallDestination::Function(&function("rates")), &body(b""))
            .is_err()
    );
    node.stop();
    server.join().unwrap();
}
