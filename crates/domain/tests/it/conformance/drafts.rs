//! Bodies that go out where they lie, and what happens to those that cannot.

use std::thread::JoinHandle;

use bytes::Bytes;
use nearpath_domain::endpoint::{self, CallBody, blocking};
use nearpath_domain::{
    CallDestination, CallReply, CallRequest, CallResponse, IncomingCall, UnsentReason,
};
use nearpath_shm::copies;

use super::node::{
    DeliveryMode, TestNode, function, is_strict, knows, knows_async, polled_endpoint,
};

/// Serves by a handler that may keep what came, until the node hangs up; the bytes that its thread
/// copied.
fn serve(
    node: &TestNode,
    instance: u64,
    name: &str,
    mut handler: impl FnMut(&mut blocking::BlockingEndpoint, &mut IncomingCall) -> CallResponse
    + Send
    + 'static,
) -> JoinHandle<u64> {
    let socket = node.socket(instance, name);
    std::thread::spawn(move || {
        let mut endpoint =
            blocking::BlockingEndpoint::join(socket, endpoint::EndpointSettings::default())
                .unwrap();
        endpoint.announce_ready().unwrap();
        let before = copies::copied_bytes();
        while let Some(mut incoming) = endpoint.next_incoming(None) {
            let answer = handler(&mut endpoint, &mut incoming);
            endpoint.send_response(incoming, answer);
        }
        copies::copied_bytes() - before
    })
}

fn call(
    endpoint: &mut blocking::BlockingEndpoint,
    to: &str,
    request: &CallRequest<'_>,
    body: &mut CallBody,
) -> CallReply {
    let pending = endpoint
        .begin_call_with(CallDestination::Function(&function(to)), request, body)
        .unwrap();
    endpoint.wait_response(pending).unwrap()
}

/// A draft with a pattern in it.
fn written(endpoint: &mut blocking::BlockingEndpoint, bytes: usize) -> CallBody {
    let mut draft = endpoint.draft_body(bytes);
    assert!(draft.iter().all(|byte| *byte == 0));
    draft
        .iter_mut()
        .zip(pattern(bytes))
        .for_each(|(byte, value)| *byte = value);
    draft.into()
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n % 251) as u8).collect()
}

pub(crate) fn a_body_written_in_place_is_not_copied(mode: DeliveryMode) {
    const SIZES: [usize; 4] = [0, 1000, 65_536, 500_000];
    let node = TestNode::new(mode);
    node.edges(&[("a", "b")]);
    let b = serve(&node, 1, "b", |endpoint, incoming| {
        let mut draft = endpoint.draft_body(incoming.body.len());
        draft
            .iter_mut()
            .zip(&incoming.body[..])
            .for_each(|(to, from)| *to = !from);
        CallResponse::ok(draft)
    });
    let mut a = node.caller(2, "a");
    knows(&mut a, "b");
    let before = copies::copied_bytes();
    for bytes in SIZES {
        let mut body = written(&mut a, bytes);
        let reply = call(
            &mut a,
            "b",
            &CallRequest {
                fields: &[(":path", b"/x")],
                ..CallRequest::default()
            },
            &mut body,
        );
        let expected: Vec<u8> = pattern(bytes).into_iter().map(|byte| !byte).collect();
        assert!(reply.body == expected && body.is_empty(), "{bytes} bytes");
    }
    let copied = copies::copied_bytes() - before;
    drop(a);
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    let all: usize = SIZES.iter().sum();
    if is_strict() {
        assert!(
            copied >= all as u64,
            "a strict peer's message is copied out, once, with its envelope"
        );
        assert!(copied < (all + 1024) as u64 && b.join().unwrap() < (all + 1024) as u64);
    } else {
        assert_eq!((copied, b.join().unwrap()), (0, 0));
    }
}

/// The same by copying: if nothing were counted here, the test above would prove nothing.
pub(crate) fn control_a_body_in_private_memory_is_copied(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "b")]);
    let b = serve(&node, 1, "b", |_, incoming| {
        CallResponse::ok(incoming.body.to_vec())
    });
    let mut a = node.caller(2, "a");
    knows(&mut a, "b");
    let before = copies::copied_bytes();
    let request = CallRequest {
        body: pattern(1000).into(),
        ..CallRequest::default()
    };
    assert_eq!(
        a.call(CallDestination::Function(&function("b")), &request)
            .unwrap()
            .body,
        pattern(1000)
    );
    assert!(copies::copied_bytes() - before >= 1000);
    drop(a);
    node.stop();
    assert!(b.join().unwrap() >= 1000);
}

#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
pub(crate) fn a_body_without_room_for_its_head_is_sent_as_a_copy(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "b")]);
    let long = vec![b'l'; 5000];
    let field = Bytes::from(long.clone());
    let b = serve(&node, 1, "b", move |endpoint, incoming| {
        let head = incoming
            .head_fields()
            .get("x-long")
            .map(|value| value.len());
        let fields = head
            .map(|_| ("x-long".into(), field.clone()))
            .into_iter()
            .collect();
        let mut draft = endpoint.draft_body(incoming.body.len() + 1);
        draft[..incoming.body.len()].copy_from_slice(&incoming.body);
        draft.truncate(incoming.body.len());
        CallResponse {
            fields,
            ..CallResponse::ok(draft)
        }
    });
    let mut a = node.caller(2, "a");
    knows(&mut a, "b");
    for (bytes, fields) in [
        (100, &[("x-long", &long[..])][..]),
        (10_000_003, &[]),
        (3_000_000, &[("x-long", &long)]),
    ] {
        let mut body = written(&mut a, bytes);
        let reply = call(
            &mut a,
            "b",
            &CallRequest {
                fields,
                ..CallRequest::default()
            },
            &mut body,
        );
        assert!(reply.body == pattern(bytes), "{bytes} bytes");
        assert_eq!(
            reply.head_fields().get("x-long").is_some(),
            !fields.is_empty()
        );
    }
    let mut bad = written(&mut a, 9);
    let request = CallRequest {
        fields: &[("No Name", b"")],
        ..CallRequest::default()
    };
    let sent = a.begin_call_with(
        CallDestination::Function(&function("b")),
        &request,
        &mut bad,
    );
    assert_eq!(
        (sent.unwrap_err(), &bad[..]),
        (UnsentReason::BadHead, &pattern(9)[..])
    );
    let sent = a.begin_call_with(
        CallDestination::Function(&function("nobody")),
        &CallRequest::default(),
        &mut bad,
    );
    assert_eq!(sent.unwrap_err(), UnsentReason::NoPeer);
    assert_eq!(
        call(&mut a, "b", &CallRequest::default(), &mut bad).body,
        pattern(9),
        "what was not sent is still there"
    );
    drop((a, bad));
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    b.join().unwrap();
}

pub(crate) fn a_received_body_is_forwarded_without_a_copy(mode: DeliveryMode) {
    const BYTES: usize = 40_000;
    let node = TestNode::new(mode);
    node.edges(&[("front", "back")]);
    let back = serve(&node, 2, "back", |_, incoming| {
        CallResponse::ok(std::mem::take(&mut incoming.body))
    });
    let front = serve(&node, 1, "front", |endpoint, incoming| {
        knows(endpoint, "back");
        let request = CallRequest {
            fields: &[(":method", b"POST"), (":path", b"/")],
            ..CallRequest::default()
        };
        let looked = incoming.body.len(); // a look is no harm
        let mut reply = call(endpoint, "back", &request, &mut incoming.body);
        assert_eq!(reply.body.len(), looked);
        CallResponse {
            fields: vec![("x-by".into(), Bytes::from_static(b"front"))],
            ..CallResponse::ok(std::mem::take(&mut reply.body))
        }
    });
    node.gateway(|endpoint| async move {
        knows_async(&endpoint, "front").await;
        for _ in 0..10 {
            let request = CallRequest {
                body: pattern(BYTES).into(),
                ..CallRequest::default()
            };
            let reply = endpoint
                .call(CallDestination::Function(&function("front")), &request)
                .unwrap()
                .await
                .unwrap();
            assert!(reply.body == pattern(BYTES));
        }
    });
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    let copied = [front, back].map(|thread| thread.join().unwrap());
    match is_strict() {
        true => assert!(
            copied.iter().all(|copied| *copied >= 10 * BYTES as u64),
            "{copied:?}"
        ),
        false => assert_eq!(copied, [0, 0]),
    }
}

pub(crate) fn a_body_with_other_readers_is_copied(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "b")]);
    let mut kept = Vec::new();
    let b = serve(&node, 1, "b", move |_, incoming| {
        kept.push(incoming.body.clone());
        let last = kept.iter().rev().nth(1).cloned().unwrap_or_default();
        assert!(
            last.iter().all(|byte| *byte == kept.len() as u8 - 1),
            "it was overwritten"
        );
        CallResponse::ok(std::mem::take(&mut incoming.body))
    });
    let mut a = node.caller(2, "a");
    knows(&mut a, "b");
    for n in 1..=20u8 {
        let mut draft = a.draft_body(600);
        draft.fill(n);
        let mut body = CallBody::from(draft);
        let look = body.clone();
        let reply = call(&mut a, "b", &CallRequest::default(), &mut body);
        assert!(reply.body.iter().all(|byte| *byte == n));
        assert!(
            look.iter().all(|byte| *byte == n) && !body.is_empty(),
            "it stays with who looks at it"
        );
    }
    drop(a);
    node.stop();
    b.join().unwrap();
}

pub(crate) fn an_event_loop_sends_drafts(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "b")]);
    let socket = node.socket(1, "b");
    let b = std::thread::spawn(move || {
        polled_endpoint(socket, true, async |endpoint| {
            endpoint.announce_ready().unwrap();
            while let Some(mut received) = endpoint.next_incoming().await {
                let body = std::mem::take(&mut received.body);
                match received.is_event {
                    true => assert_eq!(body, pattern(77)),
                    false => received.send_response(CallResponse::ok(body)),
                }
            }
        });
    });
    let a = node.socket(2, "a");
    let ended = std::thread::spawn(move || {
        polled_endpoint(a, false, async |endpoint| {
            knows_async(&endpoint, "b").await;
            let (id, request) = (function("b"), CallRequest::default());
            let body = |bytes| {
                let mut draft = endpoint.draft_body(bytes);
                draft.copy_from_slice(&pattern(bytes));
                CallBody::from(draft)
            };
            endpoint
                .send_event_with(CallDestination::Function(&id), &request, &mut body(77))
                .unwrap();
            drop(endpoint.draft_body(77));
            for bytes in [0, 1, 5000, 2_000_000] {
                let reply = endpoint
                    .call_with(CallDestination::Function(&id), &request, &mut body(bytes))
                    .unwrap()
                    .await
                    .unwrap();
                assert!(reply.body == pattern(bytes));
            }
        });
    });
    ended.join().unwrap();
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    b.join().unwrap();
}

/// More drafts than there are slots: the rest lies in private memory, and goes as well.
pub(crate) fn drafts_beyond_the_slots_use_private_memory(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "b")]);
    let b = serve(&node, 1, "b", |_, incoming| {
        CallResponse::ok(std::mem::take(&mut incoming.body))
    });
    let mut a = node.caller(2, "a");
    knows(&mut a, "b");
    let mut drafts: Vec<_> = (0..400).map(|_| a.draft_body(200_000)).collect();
    let lie = drafts.iter().filter(|draft| draft.is_in_slot()).count();
    assert!((1..400).contains(&lie), "{lie} drafts of 400 have a slot");
    drafts
        .iter_mut()
        .enumerate()
        .for_each(|(n, draft)| draft.fill(n as u8));
    let kept = drafts.split_off(390);
    drop(drafts);
    for (n, draft) in kept.into_iter().enumerate() {
        let reply = call(&mut a, "b", &CallRequest::default(), &mut draft.into());
        assert!(
            reply.body.len() == 200_000 && reply.body.iter().all(|byte| *byte == (390 + n) as u8)
        );
    }
    drop(a);
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    b.join().unwrap();
}
