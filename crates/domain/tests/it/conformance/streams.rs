//! Bodies that are written and read as they come: both ways at once, with slow readers, aborted,
//! and bereaved.
use std::future::Future;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use super::node::{
    DeliveryMode, TEST_TIMEOUT, TestNode, function, knows, knows_async, polled_endpoint,
};
use bytes::Bytes;
use nearpath_domain::endpoint::polled::{AsyncEndpoint, ReceivedCall};
use nearpath_domain::endpoint::{self, BodyReader, blocking};
use nearpath_domain::{CallDestination, CallError, CallRequest, CallResponse};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::timeout;

const PIECE: usize = 40_000;

fn piece(n: usize) -> Bytes {
    (0..PIECE)
        .map(|at| (at * 7 + n) as u8)
        .collect::<Vec<u8>>()
        .into()
}

fn streaming() -> endpoint::EndpointSettings {
    endpoint::EndpointSettings {
        stream_bodies: true,
        ..endpoint::EndpointSettings::default()
    }
}

/// A thread with a polled endpoint that hands each call to `handler`, one after the other.
fn serve<F: Future<Output = ()>>(
    node: &TestNode,
    instance: u64,
    name: &str,
    handler: impl Fn(ReceivedCall) -> F + Send + 'static,
) -> JoinHandle<()> {
    let socket = node.socket(instance, name);
    std::thread::spawn(move || {
        endpoint(socket, true, |endpoint| async move {
            endpoint.announce_ready().unwrap();
            while let Some(received) = endpoint.next_incoming().await {
                handler(received).await;
            }
        })
    })
}

fn endpoint<T, F: Future<Output = T>>(
    socket: std::os::fd::OwnedFd,
    serves: bool,
    inside: impl FnOnce(AsyncEndpoint) -> F,
) -> T {
    super::node::polled_endpoint_with(
        socket,
        endpoint::EndpointSettings {
            serves,
            ..streaming()
        },
        inside,
    )
}

fn gateway<T: 'static, F: Future<Output = T>>(
    node: &TestNode,
    inside: impl FnOnce(AsyncEndpoint) -> F,
) -> T {
    endpoint(node.hub.gateway_socket().unwrap(), false, inside)
}

async fn echo(mut received: ReceivedCall) {
    let (first, rest) = (received.body.clone(), received.take_reader());
    let mut writer = received.begin_response(CallResponse::ok(first), None);
    if let Some(rest) = rest {
        while let Some(part) = rest.next_part().await {
            let Ok(part) = part else { return };
            if writer
                .write_chunk(Bytes::copy_from_slice(&part))
                .await
                .is_err()
            {
                return;
            }
        }
    }
    writer.finish_body();
}

async fn read_all(first: &[u8], rest: Option<BodyReader>) -> Result<Vec<u8>, CallError> {
    let mut whole = first.to_vec();
    if let Some(rest) = rest {
        while let Some(part) = rest.next_part().await {
            whole.extend_from_slice(&part?);
        }
    }
    Ok(whole)
}

pub(crate) fn an_echo_runs_both_ways_at_once(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    let server = serve(&node, 1, "echo", echo);
    gateway(&node, |endpoint| async move {
        knows_async(&endpoint, "echo").await;
        let (call, mut writer) = endpoint
            .open_call(
                CallDestination::Function(&function("echo")),
                &CallRequest::default(),
                None,
            )
            .unwrap();
        let writing = tokio::task::spawn_local(async move {
            for n in 0..200 {
                writer.write_chunk(piece(n)).await.unwrap();
            }
            writer.finish_body();
        });
        let reply = call.await.unwrap();
        let mut expected = (0..200).flat_map(piece);
        assert!(reply.body.iter().all(|byte| expected.next() == Some(*byte)));
        let rest = reply.reader.unwrap();
        while let Some(part) = rest.next_part().await {
            assert!(
                part.unwrap()
                    .iter()
                    .all(|byte| expected.next() == Some(*byte))
            );
        }
        assert!(expected.next().is_none() && rest.is_complete());
        writing.await.unwrap();
    });
    node.until("all slots are back", |usage| usage.slots == 0);
    let edges = node.runtime.block_on(node.hub.read_edges());
    assert_eq!(
        (
            edges[0].by_caller.answered,
            edges[0].by_caller.in_flight,
            edges[0].by_callee.in_flight
        ),
        (1, 0, 0)
    );
    assert_eq!(
        (edges[0].by_caller.failed, edges[0].by_callee.failed),
        (0, 0)
    );
    node.stop();
    server.join().unwrap();
}

pub(crate) fn blocking_endpoints_stream_bodies(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "b")]);
    let socket = node.socket(2, "b");
    let server = std::thread::spawn(move || {
        let mut endpoint = blocking::BlockingEndpoint::join(socket, streaming()).unwrap();
        endpoint
            .serve_calls(|endpoint, incoming| {
                let writing = endpoint.begin_response(
                    incoming,
                    CallResponse::ok(incoming.body.clone()),
                    None,
                );
                if let Some(rest) = &incoming.reader {
                    while let Some(part) = endpoint.next_part(rest, Some(TEST_TIMEOUT)) {
                        endpoint
                            .write_chunk(&writing, Bytes::copy_from_slice(&part.unwrap()))
                            .unwrap();
                    }
                }
                endpoint.finish_body(writing);
                CallResponse::default()
            })
            .unwrap();
    });
    let settings = endpoint::EndpointSettings {
        serves: false,
        ..streaming()
    };
    let mut a = blocking::BlockingEndpoint::join(node.socket(1, "a"), settings).unwrap();
    knows(&mut a, "b");
    let (pending, writing) = a
        .open_call(
            CallDestination::Function(&function("b")),
            &CallRequest::default(),
            None,
        )
        .unwrap();
    let reply = a.wait_response(pending).unwrap();
    let rest = reply.reader.unwrap();
    for n in 0..100 {
        a.write_chunk(&writing, piece(n)).unwrap();
        let mut echoed = Vec::new();
        while echoed.len() < PIECE {
            echoed.extend_from_slice(&a.next_part(&rest, Some(TEST_TIMEOUT)).unwrap().unwrap());
        }
        assert!(
            echoed == piece(n),
            "each piece comes back before the next one is sent"
        );
    }
    a.finish_body(writing);
    assert!(a.next_part(&rest, Some(TEST_TIMEOUT)).is_none());
    drop((rest, a));
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    server.join().unwrap();
}

pub(crate) fn a_slow_reader_stops_only_its_own_writer(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    let server = serve(&node, 1, "source", |received| async move {
        if received.head_fields().get(":path") == Some(b"/short") {
            return received.send_response(CallResponse::ok("short"));
        }
        tokio::task::spawn_local(async move {
            let mut writer = received.begin_response(CallResponse::ok(""), None);
            let mut written = 0;
            while writer.write_chunk(piece(written)).await.is_ok() {
                written += 1;
            }
        });
    });
    gateway(&node, |endpoint| async move {
        knows_async(&endpoint, "source").await;
        let to = function("source");
        let reply = endpoint
            .call(CallDestination::Function(&to), &CallRequest::default())
            .unwrap()
            .await
            .unwrap();
        let rest = reply.reader.unwrap();
        for _ in 0..200 {
            let short = CallRequest {
                fields: &[(":path", b"/short")],
                ..CallRequest::default()
            };
            let short = endpoint
                .call(CallDestination::Function(&to), &short)
                .unwrap()
                .await
                .unwrap();
            assert_eq!(short.body, "short", "others pass the one that is not read");
        }
        let mut expected = (0..100).flat_map(piece);
        let mut read = 0;
        while read < 100 * PIECE {
            let part = rest.next_part().await.unwrap().unwrap();
            assert!(part.iter().all(|byte| expected.next() == Some(*byte)));
            read += part.len();
        }
        // The reader of the second answer never reads: what it is given is bounded.
        let _unread = endpoint
            .call(CallDestination::Function(&to), &CallRequest::default())
            .unwrap()
            .await
            .unwrap();
        drop(rest);
        for _ in 0..200 {
            let short = CallRequest {
                fields: &[(":path", b"/short")],
                ..CallRequest::default()
            };
            endpoint
                .call(CallDestination::Function(&to), &short)
                .unwrap()
                .await
                .unwrap();
        }
    });
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    server.join().unwrap();
}

pub(crate) fn unread_parts_are_bounded_by_the_window(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    let (written, mut writes) = unbounded_channel();
    let server = serve(&node, 1, "source", move |received| {
        let written = written.clone();
        async move {
            let mut writer = received.begin_response(CallResponse::ok(""), None);
            while writer.write_chunk(piece(0)).await.is_ok() {
                let _ = written.send(());
            }
        }
    });
    gateway(&node, |endpoint| async move {
        knows_async(&endpoint, "source").await;
        let reply = endpoint
            .call(
                CallDestination::Function(&function("source")),
                &CallRequest::default(),
            )
            .unwrap()
            .await
            .unwrap();
        let rest = reply.reader.unwrap();
        let first = rest.next_part().await.unwrap().unwrap();
        let second = rest.next_part().await.unwrap().unwrap();
        drop(second);
        let (mut count, mut parts) = (0, Vec::new());
        while count < 5 {
            writes.recv().await.unwrap();
            count += 1;
        }
        while let Ok(Some(())) = timeout(Duration::from_millis(200), writes.recv()).await {
            count += 1; // what moves without a reader moves in this time
        }
        // Eight with the reader, one that waits for room, the one let go, and the empty first
        // message.
        assert!(
            count <= 11,
            "{count} pieces were taken from a writer whose reader keeps the first"
        );
        drop(first);
        for _ in 0..50 {
            parts.push(rest.next_part().await.unwrap().unwrap().len());
        }
        drop(reply.body);
    });
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    server.join().unwrap();
}

#[expect(clippy::too_many_lines, reason = "one case after the other")]
pub(crate) fn a_peer_notices_when_the_other_stops_reading_or_writing(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    let (report, mut hears) = unbounded_channel();
    let server = serve(&node, 1, "f", move |mut received| {
        let report = report.clone();
        async move {
            match received.head_fields().get(":path") {
                Some(b"/source") => {
                    let mut writer = received.begin_response(CallResponse::ok("begun"), None);
                    while writer.write_chunk(piece(1)).await.is_ok() {}
                    report.send("the reader left").unwrap();
                }
                Some(b"/quitter") => {
                    let mut writer = received.begin_response(CallResponse::ok("begun"), None);
                    writer.write_chunk(piece(1)).await.unwrap();
                    drop(writer);
                }
                Some(b"/busy") => {
                    let rest = received.take_reader().unwrap();
                    rest.next_part().await.unwrap().unwrap();
                    received.send_response(CallResponse {
                        status: 429,
                        ..CallResponse::default()
                    });
                }
                _ => {
                    let rest = received.take_reader().unwrap();
                    report.send("taken").unwrap();
                    while let Some(Ok(_)) = rest.next_part().await {}
                    report
                        .send(if rest.is_complete() {
                            "complete"
                        } else {
                            "the writer left"
                        })
                        .unwrap();
                    received.given_up().await;
                }
            }
        }
    });
    gateway(&node, |endpoint| async move {
        knows_async(&endpoint, "f").await;
        let to = function("f");
        let at = |path: &'static [u8]| [(":path", path)];
        let reply = endpoint.call(
            CallDestination::Function(&to),
            &CallRequest {
                fields: &at(b"/source"),
                ..CallRequest::default()
            },
        );
        let rest = reply.unwrap().await.unwrap().reader.unwrap();
        rest.next_part().await.unwrap().unwrap();
        drop(rest);
        assert_eq!(hears.recv().await, Some("the reader left"));
        let reply = endpoint.call(
            CallDestination::Function(&to),
            &CallRequest {
                fields: &at(b"/quitter"),
                ..CallRequest::default()
            },
        );
        let reply = reply.unwrap().await.unwrap();
        assert_eq!(
            read_all(&reply.body, reply.reader).await,
            Err(CallError::Aborted),
            "never as if it were complete"
        );
        let (call, mut writer) = endpoint
            .open_call(
                CallDestination::Function(&to),
                &CallRequest {
                    fields: &at(b"/busy"),
                    ..CallRequest::default()
                },
                None,
            )
            .unwrap();
        while writer.write_chunk(piece(0)).await.is_ok() {}
        assert_eq!(
            call.await.unwrap().status,
            429,
            "an answer before the end of the call ends its writing"
        );
        let (call, mut writer) = endpoint
            .open_call(
                CallDestination::Function(&to),
                &CallRequest::default(),
                None,
            )
            .unwrap();
        writer.write_chunk(piece(0)).await.unwrap();
        assert_eq!(hears.recv().await, Some("taken"));
        drop(writer);
        assert_eq!(call.await.unwrap_err(), CallError::Aborted);
        assert_eq!(hears.recv().await, Some("the writer left"));
        let (call, mut writer) = endpoint
            .open_call(
                CallDestination::Function(&to),
                &CallRequest::default(),
                None,
            )
            .unwrap();
        writer.write_chunk(piece(0)).await.unwrap();
        assert_eq!(hears.recv().await, Some("taken"));
        drop(call);
        while writer.write_chunk(piece(0)).await.is_ok() {}
        assert_eq!(hears.recv().await, Some("the writer left"));
    });
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    server.join().unwrap();
}

/// A handler that wants no body lets it pass; it answers when its caller has written all.
pub(crate) fn an_unread_body_is_written_to_its_end(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    let (written, writes) = tokio::sync::watch::channel(0);
    let server = serve(&node, 1, "f", move |mut received| {
        let mut writes = writes.clone();
        async move {
            drop(received.take_reader());
            writes.wait_for(|written| *written == 100).await.unwrap();
            received.send_response(CallResponse::ok("all the same"));
        }
    });
    gateway(&node, |endpoint| async move {
        knows_async(&endpoint, "f").await;
        let (call, mut writer) = endpoint
            .open_call(
                CallDestination::Function(&function("f")),
                &CallRequest::default(),
                None,
            )
            .unwrap();
        for n in 0..100 {
            writer.write_chunk(piece(n)).await.unwrap();
        }
        written.send(100).unwrap();
        let reply = call.await.unwrap();
        assert_eq!((reply.status, &reply.body[..]), (200, &b"all the same"[..]));
        assert!(
            writer.write_chunk(piece(100)).await.is_err(),
            "what was answered wants no more"
        );
    });
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    server.join().unwrap();
}

pub(crate) fn streaming_and_buffering_endpoints_interoperate(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    let whole = node.serve(1, "whole", |_, incoming| {
        CallResponse::ok(incoming.body.clone())
    });
    let server = serve(&node, 2, "echo", echo);
    let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    gateway(&node, |endpoint| {
        let sent = sent.clone();
        async move {
            for name in ["whole", "echo"] {
                knows_async(&endpoint, name).await;
                let (call, mut writer) = endpoint
                    .open_call(
                        CallDestination::Function(&function(name)),
                        &CallRequest::default(),
                        Some(sent.len() as u64),
                    )
                    .unwrap();
                for part in sent.chunks(10_000) {
                    let part = Bytes::copy_from_slice(part);
                    tokio::select! { biased; written = writer.write_chunk(part) => written.unwrap() }
                    if name == "echo" {
                        break; // it answers while it reads: see the first test
                    }
                }
                writer.finish_body();
                let reply = call.await.unwrap();
                let got = read_all(&reply.body, reply.reader).await.unwrap();
                assert!(
                    got == sent[..got.len()] && (name == "echo" || got.len() == sent.len()),
                    "{name}"
                );
            }
        }
    });
    let got = polled_endpoint(
        node.hub.gateway_socket().unwrap(),
        false,
        |endpoint| async move {
            knows_async(&endpoint, "echo").await;
            let request = CallRequest {
                body: sent.clone().into(),
                ..CallRequest::default()
            };
            endpoint
                .call(CallDestination::Function(&function("echo")), &request)
                .unwrap()
                .await
                .unwrap()
                .body
                == sent
        },
    );
    assert!(
        got,
        "a party that takes bodies as a whole gets the stream as a whole"
    );
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    super::node::joined([whole, server]);
}

/// Plays the child, which answers without end.
pub(crate) fn source(socket_path: &str) {
    let mut endpoint =
        blocking::BlockingEndpoint::dial(Path::new(socket_path), streaming()).unwrap();
    endpoint
        .serve_calls(|endpoint, incoming| {
            let writing = endpoint.begin_response(incoming, CallResponse::ok("begun"), None);
            while endpoint.write_chunk(&writing, piece(1)).is_ok() {}
            CallResponse::default()
        })
        .unwrap();
}

pub(crate) fn a_response_of_a_killed_function_is_aborted(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    for round in 0..10 {
        let mut process = node.process(100 + round, "source", "source");
        gateway(&node, |endpoint| async move {
            knows_async(&endpoint, "source").await;
            let reply = endpoint
                .call(
                    CallDestination::Function(&function("source")),
                    &CallRequest::default(),
                )
                .unwrap()
                .await
                .unwrap();
            let rest = reply.reader.unwrap();
            for _ in 0..5 * round {
                assert_eq!(rest.next_part().await.unwrap().unwrap().len(), PIECE);
            }
            process.kill();
            let end = loop {
                match rest.next_part().await {
                    Some(Ok(part)) => {
                        assert_eq!(part.len(), PIECE, "what had been sent is still read")
                    }
                    end => break end,
                }
            };
            assert_eq!(end.unwrap().unwrap_err(), CallError::PeerDied);
        });
        node.until("all slots are back", |usage| {
            usage.slots == 0 && usage.endpoints == 0
        });
    }
    node.stop();
}
