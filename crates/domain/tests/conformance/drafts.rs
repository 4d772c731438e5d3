//! Bodies that go out where they lie, and what happens to those that cannot.

use std::thread::JoinHandle;

use bytes::Bytes;
use nearpath_domain::post::{self, Payload, blocking};
use nearpath_domain::{Answer, Incoming, Reply, Request, To, Unsent};
use nearpath_shm::copies;

use super::node::{Mode, Node, function, is_strict, knows, knows_async, polled_party};

/// Serves by a handler that may keep what came, until the node hangs up; the bytes that its thread copied.
fn serve(
    node: &Node,
    instance: u64,
    name: &str,
    mut handler: impl FnMut(&mut blocking::Post, &mut Incoming) -> Answer + Send + 'static,
) -> JoinHandle<u64> {
    let socket = node.socket(instance, name);
    std::thread::spawn(move || {
        let mut post = blocking::Post::join(socket, post::Settings::default()).unwrap();
        post.ready().unwrap();
        let before = copies::so_far();
        while let Some(mut incoming) = post.next(None) {
            let answer = handler(&mut post, &mut incoming);
            post.answer(incoming, answer);
        }
        copies::so_far() - before
    })
}

fn call(post: &mut blocking::Post, to: &str, request: &Request<'_>, body: &mut Payload) -> Reply {
    let pending = post.begin_with(To::Function(&function(to)), request, body).unwrap();
    post.wait(pending).unwrap()
}

/// A draft with a pattern in it.
fn written(post: &mut blocking::Post, bytes: usize) -> Payload {
    let mut draft = post.draft(bytes);
    assert!(draft.iter().all(|byte| *byte == 0));
    draft.iter_mut().zip(pattern(bytes)).for_each(|(byte, value)| *byte = value);
    draft.into()
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n % 251) as u8).collect()
}

pub(crate) fn what_is_written_in_place_is_not_copied(mode: Mode) {
    const SIZES: [usize; 4] = [0, 1000, 65_536, 500_000];
    let node = Node::new(mode);
    node.edges(&[("a", "b")]);
    let b = serve(&node, 1, "b", |post, incoming| {
        let mut draft = post.draft(incoming.body.len());
        draft.iter_mut().zip(&incoming.body[..]).for_each(|(to, from)| *to = !from);
        Answer::ok(draft)
    });
    let mut a = node.caller(2, "a");
    knows(&mut a, "b");
    let before = copies::so_far();
    for bytes in SIZES {
        let mut body = written(&mut a, bytes);
        let reply = call(&mut a, "b", &Request { fields: &[(":path", b"/x")], ..Request::default() }, &mut body);
        let expected: Vec<u8> = pattern(bytes).into_iter().map(|byte| !byte).collect();
        assert!(reply.body == expected && body.is_empty(), "{bytes} bytes");
    }
    let copied = copies::so_far() - before;
    drop(a);
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    let all: usize = SIZES.iter().sum();
    if is_strict() {
        assert!(copied >= all as u64, "a strict peer's message is copied out, once, with its envelope");
        assert!(copied < (all + 1024) as u64 && b.join().unwrap() < (all + 1024) as u64);
    } else {
        assert_eq!((copied, b.join().unwrap()), (0, 0));
    }
}

/// The same by copying: if nothing were counted here, the test above would prove nothing.
pub(crate) fn control_what_is_not_written_in_place_is_copied(mode: Mode) {
    let node = Node::new(mode);
    node.edges(&[("a", "b")]);
    let b = serve(&node, 1, "b", |_, incoming| Answer::ok(incoming.body.to_vec()));
    let mut a = node.caller(2, "a");
    knows(&mut a, "b");
    let before = copies::so_far();
    let request = Request { body: pattern(1000).into(), ..Request::default() };
    assert_eq!(a.call(To::Function(&function("b")), &request).unwrap().body, pattern(1000));
    assert!(copies::so_far() - before >= 1000);
    drop(a);
    node.stop();
    assert!(b.join().unwrap() >= 1000);
}

pub(crate) fn what_has_no_room_in_place_goes_all_the_same(mode: Mode) {
    let node = Node::new(mode);
    node.edges(&[("a", "b")]);
    let long = vec![b'l'; 5000];
    let field = Bytes::from(long.clone());
    let b = serve(&node, 1, "b", move |post, incoming| {
        let head = incoming.fields().get("x-long").map(|value| value.len());
        let fields = head.map(|_| ("x-long".into(), field.clone())).into_iter().collect();
        let mut draft = post.draft(incoming.body.len() + 1);
        draft[..incoming.body.len()].copy_from_slice(&incoming.body);
        draft.truncate(incoming.body.len());
        Answer { fields, ..Answer::ok(draft) }
    });
    let mut a = node.caller(2, "a");
    knows(&mut a, "b");
    for (bytes, fields) in [(100, &[("x-long", &long[..])][..]), (10_000_003, &[]), (3_000_000, &[("x-long", &long)])] {
        let mut body = written(&mut a, bytes);
        let reply = call(&mut a, "b", &Request { fields, ..Request::default() }, &mut body);
        assert!(reply.body == pattern(bytes), "{bytes} bytes");
        assert_eq!(reply.fields().get("x-long").is_some(), !fields.is_empty());
    }
    let mut bad = written(&mut a, 9);
    let request = Request { fields: &[("No Name", b"")], ..Request::default() };
    let sent = a.begin_with(To::Function(&function("b")), &request, &mut bad);
    assert_eq!((sent.unwrap_err(), &bad[..]), (Unsent::Head, &pattern(9)[..]));
    let sent = a.begin_with(To::Function(&function("nobody")), &Request::default(), &mut bad);
    assert_eq!(sent.unwrap_err(), Unsent::NoPeer);
    assert_eq!(call(&mut a, "b", &Request::default(), &mut bad).body, pattern(9), "what was not sent is still there");
    drop((a, bad));
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    b.join().unwrap();
}

pub(crate) fn what_came_is_passed_on(mode: Mode) {
    const BYTES: usize = 40_000;
    let node = Node::new(mode);
    node.edges(&[("front", "back")]);
    let back = serve(&node, 2, "back", |_, incoming| Answer::ok(std::mem::take(&mut incoming.body)));
    let front = serve(&node, 1, "front", |post, incoming| {
        knows(post, "back");
        let request = Request { fields: &[(":method", b"POST"), (":path", b"/")], ..Request::default() };
        let looked = incoming.body.len(); // a look is no harm
        let mut reply = call(post, "back", &request, &mut incoming.body);
        assert_eq!(reply.body.len(), looked);
        Answer {
            fields: vec![("x-by".into(), Bytes::from_static(b"front"))],
            ..Answer::ok(std::mem::take(&mut reply.body))
        }
    });
    node.gateway(|post| async move {
        knows_async(&post, "front").await;
        for _ in 0..10 {
            let request = Request { body: pattern(BYTES).into(), ..Request::default() };
            let reply = post.call(To::Function(&function("front")), &request).unwrap().await.unwrap();
            assert!(reply.body == pattern(BYTES));
        }
    });
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    let copied = [front, back].map(|thread| thread.join().unwrap());
    match is_strict() {
        true => assert!(copied.iter().all(|copied| *copied >= 10 * BYTES as u64), "{copied:?}"),
        false => assert_eq!(copied, [0, 0]),
    }
}

pub(crate) fn what_somebody_keeps_is_copied(mode: Mode) {
    let node = Node::new(mode);
    node.edges(&[("a", "b")]);
    let mut kept = Vec::new();
    let b = serve(&node, 1, "b", move |_, incoming| {
        kept.push(incoming.body.clone());
        let last = kept.iter().rev().nth(1).cloned().unwrap_or_default();
        assert!(last.iter().all(|byte| *byte == kept.len() as u8 - 1), "it was overwritten");
        Answer::ok(std::mem::take(&mut incoming.body))
    });
    let mut a = node.caller(2, "a");
    knows(&mut a, "b");
    for n in 1..=20u8 {
        let mut draft = a.draft(600);
        draft.fill(n);
        let mut body = Payload::from(draft);
        let look = body.clone();
        let reply = call(&mut a, "b", &Request::default(), &mut body);
        assert!(reply.body.iter().all(|byte| *byte == n));
        assert!(look.iter().all(|byte| *byte == n) && !body.is_empty(), "it stays with who looks at it");
    }
    drop(a);
    node.stop();
    b.join().unwrap();
}

pub(crate) fn drafts_of_an_event_loop(mode: Mode) {
    let node = Node::new(mode);
    node.edges(&[("a", "b")]);
    let socket = node.socket(1, "b");
    let b = std::thread::spawn(move || {
        polled_party(socket, true, async |post| {
            post.ready().unwrap();
            while let Some(mut received) = post.next().await {
                let body = std::mem::take(&mut received.body);
                match received.event {
                    true => assert_eq!(body, pattern(77)),
                    false => received.answer(Answer::ok(body)),
                }
            }
        });
    });
    let a = node.socket(2, "a");
    let ended = std::thread::spawn(move || {
        polled_party(a, false, async |post| {
            knows_async(&post, "b").await;
            let (id, request) = (function("b"), Request::default());
            let body = |bytes| {
                let mut draft = post.draft(bytes);
                draft.copy_from_slice(&pattern(bytes));
                Payload::from(draft)
            };
            post.notify_with(To::Function(&id), &request, &mut body(77)).unwrap();
            drop(post.draft(77));
            for bytes in [0, 1, 5000, 2_000_000] {
                let reply = post.call_with(To::Function(&id), &request, &mut body(bytes)).unwrap().await.unwrap();
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
pub(crate) fn more_drafts_than_slots(mode: Mode) {
    let node = Node::new(mode);
    node.edges(&[("a", "b")]);
    let b = serve(&node, 1, "b", |_, incoming| Answer::ok(std::mem::take(&mut incoming.body)));
    let mut a = node.caller(2, "a");
    knows(&mut a, "b");
    let mut drafts: Vec<_> = (0..400).map(|_| a.draft(200_000)).collect();
    let lie = drafts.iter().filter(|draft| draft.is_in_slot()).count();
    assert!((1..400).contains(&lie), "{lie} drafts of 400 have a slot");
    drafts.iter_mut().enumerate().for_each(|(n, draft)| draft.fill(n as u8));
    let kept = drafts.split_off(390);
    drop(drafts);
    for (n, draft) in kept.into_iter().enumerate() {
        let reply = call(&mut a, "b", &Request::default(), &mut draft.into());
        assert!(reply.body.len() == 200_000 && reply.body.iter().all(|byte| *byte == (390 + n) as u8));
    }
    drop(a);
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    b.join().unwrap();
}
