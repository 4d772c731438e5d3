//! Bodies that are written and read as they come: both ways at once, with slow readers, broken off, and bereaved.
use std::future::Future;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use super::node::{DEADLINE, Mode, Node, function, knows, knows_async, polled_party};
use bytes::Bytes;
use nearpath_domain::post::polled::{Post, Received};
use nearpath_domain::post::{self, Rest, blocking};
use nearpath_domain::{Answer, CallError, Request, To};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::timeout;

const PIECE: usize = 40_000;

fn piece(n: usize) -> Bytes {
    (0..PIECE).map(|at| (at * 7 + n) as u8).collect::<Vec<u8>>().into()
}

fn streaming() -> post::Settings {
    post::Settings { streams: true, ..post::Settings::default() }
}

/// A thread with a polled party that hands each call to `handler`, one after the other.
fn serve<F: Future<Output = ()>>(
    node: &Node,
    instance: u64,
    name: &str,
    handler: impl Fn(Received) -> F + Send + 'static,
) -> JoinHandle<()> {
    let socket = node.socket(instance, name);
    std::thread::spawn(move || {
        party(socket, true, |post| async move {
            post.ready().unwrap();
            while let Some(received) = post.next().await {
                handler(received).await;
            }
        })
    })
}

fn party<T, F: Future<Output = T>>(socket: std::os::fd::OwnedFd, serves: bool, inside: impl FnOnce(Post) -> F) -> T {
    super::node::polled_party_with(socket, post::Settings { serves, ..streaming() }, inside)
}

fn gateway<T: 'static, F: Future<Output = T>>(node: &Node, inside: impl FnOnce(Post) -> F) -> T {
    party(node.hub.gateway_socket().unwrap(), false, inside)
}

async fn echo(mut received: Received) {
    let (first, rest) = (received.body.clone(), received.take_rest());
    let mut writer = received.begin(Answer::ok(first), None);
    if let Some(rest) = rest {
        while let Some(part) = rest.next().await {
            let Ok(part) = part else { return };
            if writer.write(Bytes::copy_from_slice(&part)).await.is_err() {
                return;
            }
        }
    }
    writer.finish();
}

async fn read_all(first: &[u8], rest: Option<Rest>) -> Result<Vec<u8>, CallError> {
    let mut whole = first.to_vec();
    if let Some(rest) = rest {
        while let Some(part) = rest.next().await {
            whole.extend_from_slice(&part?);
        }
    }
    Ok(whole)
}

pub(crate) fn an_echo_runs_both_ways_at_once(mode: Mode) {
    let node = Node::new(mode);
    let server = serve(&node, 1, "echo", echo);
    gateway(&node, |post| async move {
        knows_async(&post, "echo").await;
        let (call, mut writer) = post.open(To::Function(&function("echo")), &Request::default(), None).unwrap();
        let writing = tokio::task::spawn_local(async move {
            for n in 0..200 {
                writer.write(piece(n)).await.unwrap();
            }
            writer.finish();
        });
        let reply = call.await.unwrap();
        let mut expected = (0..200).flat_map(piece);
        assert!(reply.body.iter().all(|byte| expected.next() == Some(*byte)));
        let rest = reply.rest.unwrap();
        while let Some(part) = rest.next().await {
            assert!(part.unwrap().iter().all(|byte| expected.next() == Some(*byte)));
        }
        assert!(expected.next().is_none() && rest.is_over());
        writing.await.unwrap();
    });
    node.until("all slots are back", |usage| usage.slots == 0);
    let edges = node.runtime.block_on(node.hub.edges());
    assert_eq!((edges[0].made.answered, edges[0].made.in_flight, edges[0].taken.in_flight), (1, 0, 0));
    assert_eq!((edges[0].made.failed, edges[0].taken.failed), (0, 0));
    node.stop();
    server.join().unwrap();
}

pub(crate) fn blocking_parties_stream_too(mode: Mode) {
    let node = Node::new(mode);
    node.edges(&[("a", "b")]);
    let socket = node.socket(2, "b");
    let server = std::thread::spawn(move || {
        let mut post = blocking::Post::join(socket, streaming()).unwrap();
        post.serve(|post, incoming| {
            let writing = post.begin_answer(incoming, Answer::ok(incoming.body.clone()), None);
            if let Some(rest) = &incoming.rest {
                while let Some(part) = post.part(rest, Some(DEADLINE)) {
                    post.write(&writing, Bytes::copy_from_slice(&part.unwrap())).unwrap();
                }
            }
            post.finish(writing);
            Answer::default()
        })
        .unwrap();
    });
    let settings = post::Settings { serves: false, ..streaming() };
    let mut a = blocking::Post::join(node.socket(1, "a"), settings).unwrap();
    knows(&mut a, "b");
    let (pending, writing) = a.open(To::Function(&function("b")), &Request::default(), None).unwrap();
    let reply = a.wait(pending).unwrap();
    let rest = reply.rest.unwrap();
    for n in 0..100 {
        a.write(&writing, piece(n)).unwrap();
        let mut echoed = Vec::new();
        while echoed.len() < PIECE {
            echoed.extend_from_slice(&a.part(&rest, Some(DEADLINE)).unwrap().unwrap());
        }
        assert!(echoed == piece(n), "each piece comes back before the next one is sent");
    }
    a.finish(writing);
    assert!(a.part(&rest, Some(DEADLINE)).is_none());
    drop((rest, a));
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    server.join().unwrap();
}

pub(crate) fn a_slow_reader_stops_the_writer_and_nobody_else(mode: Mode) {
    let node = Node::new(mode);
    let server = serve(&node, 1, "source", |received| async move {
        if received.fields().get(":path") == Some(b"/short") {
            return received.answer(Answer::ok("short"));
        }
        tokio::task::spawn_local(async move {
            let mut writer = received.begin(Answer::ok(""), None);
            let mut written = 0;
            while writer.write(piece(written)).await.is_ok() {
                written += 1;
            }
        });
    });
    gateway(&node, |post| async move {
        knows_async(&post, "source").await;
        let to = function("source");
        let reply = post.call(To::Function(&to), &Request::default()).unwrap().await.unwrap();
        let rest = reply.rest.unwrap();
        for _ in 0..200 {
            let short = Request { fields: &[(":path", b"/short")], ..Request::default() };
            let short = post.call(To::Function(&to), &short).unwrap().await.unwrap();
            assert_eq!(short.body, "short", "others pass the one that is not read");
        }
        let mut expected = (0..100).flat_map(piece);
        let mut read = 0;
        while read < 100 * PIECE {
            let part = rest.next().await.unwrap().unwrap();
            assert!(part.iter().all(|byte| expected.next() == Some(*byte)));
            read += part.len();
        }
        // The reader of the second answer never reads: what it is given is bounded.
        let _unread = post.call(To::Function(&to), &Request::default()).unwrap().await.unwrap();
        drop(rest);
        for _ in 0..200 {
            let short = Request { fields: &[(":path", b"/short")], ..Request::default() };
            post.call(To::Function(&to), &short).unwrap().await.unwrap();
        }
    });
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    server.join().unwrap();
}

pub(crate) fn what_is_unread_is_a_window(mode: Mode) {
    let node = Node::new(mode);
    let (written, mut writes) = unbounded_channel();
    let server = serve(&node, 1, "source", move |received| {
        let written = written.clone();
        async move {
            let mut writer = received.begin(Answer::ok(""), None);
            while writer.write(piece(0)).await.is_ok() {
                let _ = written.send(());
            }
        }
    });
    gateway(&node, |post| async move {
        knows_async(&post, "source").await;
        let reply = post.call(To::Function(&function("source")), &Request::default()).unwrap().await.unwrap();
        let rest = reply.rest.unwrap();
        let first = rest.next().await.unwrap().unwrap();
        let second = rest.next().await.unwrap().unwrap();
        drop(second);
        let (mut count, mut parts) = (0, Vec::new());
        while count < 5 {
            writes.recv().await.unwrap();
            count += 1;
        }
        while let Ok(Some(())) = timeout(Duration::from_millis(200), writes.recv()).await {
            count += 1; // what moves without a reader moves in this time
        }
        // Eight with the reader, one that waits for room, the one let go, and the empty first message.
        assert!(count <= 11, "{count} pieces were taken from a writer whose reader keeps the first");
        drop(first);
        for _ in 0..50 {
            parts.push(rest.next().await.unwrap().unwrap().len());
        }
        drop(reply.body);
    });
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    server.join().unwrap();
}

#[expect(clippy::too_many_lines, reason = "one case after the other")]
pub(crate) fn who_stops_reading_or_writing_is_heard(mode: Mode) {
    let node = Node::new(mode);
    let (heard, mut hears) = unbounded_channel();
    let server = serve(&node, 1, "f", move |mut received| {
        let heard = heard.clone();
        async move {
            match received.fields().get(":path") {
                Some(b"/source") => {
                    let mut writer = received.begin(Answer::ok("begun"), None);
                    while writer.write(piece(1)).await.is_ok() {}
                    heard.send("the reader left").unwrap();
                }
                Some(b"/quitter") => {
                    let mut writer = received.begin(Answer::ok("begun"), None);
                    writer.write(piece(1)).await.unwrap();
                    drop(writer);
                }
                Some(b"/busy") => {
                    let rest = received.take_rest().unwrap();
                    rest.next().await.unwrap().unwrap();
                    received.answer(Answer { status: 429, ..Answer::default() });
                }
                _ => {
                    let rest = received.take_rest().unwrap();
                    heard.send("taken").unwrap();
                    while let Some(Ok(_)) = rest.next().await {}
                    heard.send(if rest.is_over() { "complete" } else { "the writer left" }).unwrap();
                    received.given_up().await;
                }
            }
        }
    });
    gateway(&node, |post| async move {
        knows_async(&post, "f").await;
        let to = function("f");
        let at = |path: &'static [u8]| [(":path", path)];
        let reply = post.call(To::Function(&to), &Request { fields: &at(b"/source"), ..Request::default() });
        let rest = reply.unwrap().await.unwrap().rest.unwrap();
        rest.next().await.unwrap().unwrap();
        drop(rest);
        assert_eq!(hears.recv().await, Some("the reader left"));
        let reply = post.call(To::Function(&to), &Request { fields: &at(b"/quitter"), ..Request::default() });
        let reply = reply.unwrap().await.unwrap();
        assert_eq!(read_all(&reply.body, reply.rest).await, Err(CallError::BrokenOff), "never as if it were complete");
        let (call, mut writer) =
            post.open(To::Function(&to), &Request { fields: &at(b"/busy"), ..Request::default() }, None).unwrap();
        while writer.write(piece(0)).await.is_ok() {}
        assert_eq!(call.await.unwrap().status, 429, "an answer before the end of the call ends its writing");
        let (call, mut writer) = post.open(To::Function(&to), &Request::default(), None).unwrap();
        writer.write(piece(0)).await.unwrap();
        assert_eq!(hears.recv().await, Some("taken"));
        drop(writer);
        assert_eq!(call.await.unwrap_err(), CallError::BrokenOff);
        assert_eq!(hears.recv().await, Some("the writer left"));
        let (call, mut writer) = post.open(To::Function(&to), &Request::default(), None).unwrap();
        writer.write(piece(0)).await.unwrap();
        assert_eq!(hears.recv().await, Some("taken"));
        drop(call);
        while writer.write(piece(0)).await.is_ok() {}
        assert_eq!(hears.recv().await, Some("the writer left"));
    });
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    server.join().unwrap();
}

/// A handler that wants no body lets it pass; it answers when its caller has written all.
pub(crate) fn a_body_that_nobody_reads_is_written_to_its_end(mode: Mode) {
    let node = Node::new(mode);
    let (written, writes) = tokio::sync::watch::channel(0);
    let server = serve(&node, 1, "f", move |mut received| {
        let mut writes = writes.clone();
        async move {
            drop(received.take_rest());
            writes.wait_for(|written| *written == 100).await.unwrap();
            received.answer(Answer::ok("all the same"));
        }
    });
    gateway(&node, |post| async move {
        knows_async(&post, "f").await;
        let (call, mut writer) = post.open(To::Function(&function("f")), &Request::default(), None).unwrap();
        for n in 0..100 {
            writer.write(piece(n)).await.unwrap();
        }
        written.send(100).unwrap();
        let reply = call.await.unwrap();
        assert_eq!((reply.status, &reply.body[..]), (200, &b"all the same"[..]));
        assert!(writer.write(piece(100)).await.is_err(), "what was answered wants no more");
    });
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    server.join().unwrap();
}

pub(crate) fn whole_and_streaming_parties_understand_each_other(mode: Mode) {
    let node = Node::new(mode);
    let whole = node.serve(1, "whole", |_, incoming| Answer::ok(incoming.body.clone()));
    let server = serve(&node, 2, "echo", echo);
    let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    gateway(&node, |post| {
        let sent = sent.clone();
        async move {
            for name in ["whole", "echo"] {
                knows_async(&post, name).await;
                let (call, mut writer) =
                    post.open(To::Function(&function(name)), &Request::default(), Some(sent.len() as u64)).unwrap();
                for part in sent.chunks(10_000) {
                    let part = Bytes::copy_from_slice(part);
                    tokio::select! { biased; written = writer.write(part) => written.unwrap() }
                    if name == "echo" {
                        break; // it answers while it reads: see the first test
                    }
                }
                writer.finish();
                let reply = call.await.unwrap();
                let got = read_all(&reply.body, reply.rest).await.unwrap();
                assert!(got == sent[..got.len()] && (name == "echo" || got.len() == sent.len()), "{name}");
            }
        }
    });
    let got = polled_party(node.hub.gateway_socket().unwrap(), false, |post| async move {
        knows_async(&post, "echo").await;
        let request = Request { body: sent.clone().into(), ..Request::default() };
        post.call(To::Function(&function("echo")), &request).unwrap().await.unwrap().body == sent
    });
    assert!(got, "a party that takes bodies as a whole gets the stream as a whole");
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    super::node::joined([whole, server]);
}

/// What the child does: answers without end.
pub(crate) fn source(door: &str) {
    let mut post = blocking::Post::dial(Path::new(door), streaming()).unwrap();
    post.serve(|post, incoming| {
        let writing = post.begin_answer(incoming, Answer::ok("begun"), None);
        while post.write(&writing, piece(1)).is_ok() {}
        Answer::default()
    })
    .unwrap();
}

pub(crate) fn an_answer_whose_function_is_killed_is_broken_off(mode: Mode) {
    let node = Node::new(mode);
    for round in 0..10 {
        let mut process = node.process(100 + round, "source", "source");
        gateway(&node, |post| async move {
            knows_async(&post, "source").await;
            let reply = post.call(To::Function(&function("source")), &Request::default()).unwrap().await.unwrap();
            let rest = reply.rest.unwrap();
            for _ in 0..5 * round {
                assert_eq!(rest.next().await.unwrap().unwrap().len(), PIECE);
            }
            process.kill();
            let end = loop {
                match rest.next().await {
                    Some(Ok(part)) => assert_eq!(part.len(), PIECE, "what had been sent is still read"),
                    end => break end,
                }
            };
            assert_eq!(end.unwrap().unwrap_err(), CallError::Died);
        });
        node.until("all slots are back", |usage| usage.slots == 0 && usage.parties == 0);
    }
    node.stop();
}
