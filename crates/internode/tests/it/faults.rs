//! Nodes that send what no node may send.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Request;
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nearpath_internode::StateServer;
use nearpath_internode::protocol::{
    MAX_FUNCTIONS, MAX_LINE_BYTES, NodeHello, NodeIncarnation, PROTOCOL, StateChange, StateFrame,
    StatePart,
};
use nearpath_types::FunctionLoad;
use nearpath_wire::Body;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::fixture::{Follower, is_up, name, new_state};

/// Lines of a node's state, which then stays silent.
type Script = Arc<dyn Fn() -> Vec<Bytes> + Send + Sync>;

/// Starts a node that answers pings, and sends the lines of its script to each subscriber.
async fn start_scripted(script: impl Fn() -> Vec<Bytes> + Send + Sync + 'static) -> Follower {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let script: Script = Arc::new(script);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve_script(stream, script.clone()));
        }
    });
    Follower::start(&[("b", address)])
}

async fn serve_script(stream: TcpStream, script: Script) {
    let (_state, states) = watch::channel(Arc::new(new_state("b")));
    let server = StateServer::new(states);
    let service = service_fn(move |request: Request<Incoming>| {
        let (server, script) = (server.clone(), script.clone());
        async move {
            let request = request.map(Body::boxed);
            let is_ping = request.uri().path().ends_with("ping");
            let mut response = server.respond(&name("a"), request).await;
            if !is_ping {
                let lines = script().into_iter();
                let lines = lines.map(|line| Ok::<_, Infallible>(Frame::data(line)));
                let lines = stream::iter(lines).chain(stream::pending());
                *response.body_mut() = Body::boxed(StreamBody::new(lines));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn hello(node: &str) -> Bytes {
    StateFrame::Hello(NodeHello {
        protocol: PROTOCOL,
        node: name(node),
        incarnation: NodeIncarnation(1),
        version: "9.9.9".to_owned(),
        started: 1,
    })
    .to_line()
}

fn part(functions: std::ops::Range<usize>, complete: bool) -> Bytes {
    let id = |number| format!("f{number}").parse().unwrap();
    let set = functions.map(|number| (id(number), FunctionLoad::default()));
    let set = set.collect();
    StateFrame::State(StatePart { set, complete }).to_line()
}

fn change(number: u64) -> Bytes {
    let change = StateChange {
        number,
        ..StateChange::default()
    };
    StateFrame::Change(change).to_line()
}

#[tokio::test]
async fn garbage_brings_a_node_down() {
    let mut follower = start_scripted(|| vec!["garbage\n".into()]).await;
    let cause = follower.wait_down("b").await;
    assert!(cause.starts_with("invalid frame: "), "{cause}");
}

#[tokio::test]
async fn a_line_that_is_too_long_brings_a_node_down() {
    let line = Bytes::from(vec![b'{'; MAX_LINE_BYTES + 1]);
    let mut follower = start_scripted(move || vec![line.clone()]).await;
    let cause = follower.wait_down("b").await;
    assert_eq!(
        cause,
        format!("a line is longer than {MAX_LINE_BYTES} bytes")
    );
}

#[tokio::test]
async fn too_many_functions_bring_a_node_down() {
    const PART: usize = 10_000;
    let parts = (0..=MAX_FUNCTIONS / PART).map(|at| part(at * PART..(at + 1) * PART, false));
    let lines: Vec<Bytes> = std::iter::once(hello("b")).chain(parts).collect();
    let mut follower = start_scripted(move || lines.clone()).await;
    let cause = follower.wait_down("b").await;
    assert_eq!(
        cause,
        format!("it reports more than {MAX_FUNCTIONS} functions")
    );
}

#[tokio::test]
async fn another_node_at_the_address_is_down() {
    let mut follower = start_scripted(|| vec![hello("c"), part(0..1, true)]).await;
    let cause = follower.wait_down("b").await;
    assert_eq!(cause, "the node says that it is c");
}

#[tokio::test]
async fn a_state_of_a_newer_release_is_understood() {
    let newer = "{\"weather\":{\"rain\":1}}\n";
    let lines = move || vec![hello("b"), newer.into(), part(0..2, true), newer.into()];
    let mut follower = start_scripted(lines).await;
    let status = follower.wait_up("b").await;
    assert_eq!(status.functions.len(), 2);
    assert_eq!(status.version.as_deref(), Some("9.9.9"));
}

#[tokio::test]
async fn a_silent_stream_brings_a_node_down() {
    let mut follower = start_scripted(|| vec![hello("b"), part(0..2, true)]).await;
    follower.wait_up("b").await;
    let cause = follower.wait_down("b").await;
    assert_eq!(cause, "no line of its state came in time");
}

#[tokio::test]
async fn a_gap_starts_the_subscription_again_and_the_state_stays() {
    let count = AtomicUsize::new(0);
    // The first subscription misses a change; the second is right.
    let lines = move || match count.fetch_add(1, Ordering::Relaxed) {
        0 => vec![hello("b"), part(0..2, true), change(2)],
        _ => vec![hello("b"), part(0..3, true), change(1)],
    };
    let mut follower = start_scripted(lines).await;
    let mut was_ready = false;
    let status = follower
        .wait("b", |status| {
            // A node that was ready may not lose its functions on the way.
            assert!(!was_ready || is_up(status) && !status.functions.is_empty());
            was_ready |= is_up(status);
            is_up(status) && status.functions.len() == 3
        })
        .await;
    assert_eq!(status.reconnects, 1);
}
