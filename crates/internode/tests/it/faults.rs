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

use crate::fixture::{Follower, down_cause, is_up, name, new_state};

/// Lines of a node's state. The stream then stays silent.
struct Script {
    first: Vec<Bytes>,
    /// Sent when `is_released` becomes true.
    late: Vec<Bytes>,
}

/// A node that answers pings, and sends each subscriber the lines of the next script. The last
/// script is repeated.
struct ScriptedNode {
    scripts: Vec<Script>,
    subscriptions: AtomicUsize,
    is_released: watch::Sender<bool>,
}

impl ScriptedNode {
    fn new(scripts: Vec<Script>) -> Arc<Self> {
        Arc::new(Self {
            scripts,
            subscriptions: AtomicUsize::new(0),
            is_released: watch::Sender::new(false),
        })
    }

    async fn start(self: &Arc<Self>) -> Follower {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let node = self.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve_script(stream, node.clone()));
            }
        });
        Follower::start(&[("b", address)])
    }

    fn next_body(&self) -> Body {
        let number = self.subscriptions.fetch_add(1, Ordering::Relaxed);
        let script = &self.scripts[number.min(self.scripts.len() - 1)];
        let frames = |lines: &[Bytes]| {
            let frames = lines.iter().cloned().map(Frame::data);
            stream::iter(frames.map(Ok::<_, Infallible>).collect::<Vec<_>>())
        };
        let (first, late) = (frames(&script.first), frames(&script.late));
        let mut is_released = self.is_released.subscribe();
        let release = stream::once(async move {
            let _ = is_released.wait_for(|is_released| *is_released).await;
            late
        });
        let lines = first.chain(release.flatten()).chain(stream::pending());
        Body::boxed(StreamBody::new(lines))
    }
}

/// Starts a node that sends the same lines to each subscriber.
async fn start_scripted(lines: Vec<Bytes>) -> Follower {
    let (first, late) = (lines, Vec::new());
    ScriptedNode::new(vec![Script { first, late }])
        .start()
        .await
}

async fn serve_script(stream: TcpStream, node: Arc<ScriptedNode>) {
    let (_state, states) = watch::channel(Arc::new(new_state("b")));
    let server = StateServer::new(states, tokio::sync::watch::channel(Default::default()).1);
    let service = service_fn(move |request: Request<Incoming>| {
        let (server, node) = (server.clone(), node.clone());
        async move {
            let request = request.map(Body::boxed);
            let is_ping = request.uri().path().ends_with("ping");
            let mut response = server.respond(&name("a"), request).await;
            if !is_ping {
                *response.body_mut() = node.next_body();
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
    let mut follower = start_scripted(vec!["garbage\n".into()]).await;
    let cause = follower.wait_down("b").await;
    assert!(cause.starts_with("invalid frame: "), "{cause}");
}

#[tokio::test]
async fn a_line_that_is_too_long_brings_a_node_down() {
    let line = Bytes::from(vec![b'{'; MAX_LINE_BYTES + 1]);
    let mut follower = start_scripted(vec![line]).await;
    let cause = format!("a line is longer than {MAX_LINE_BYTES} bytes");
    follower.wait_cause("b", &cause).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_functions_bring_a_node_down() {
    const PART: usize = 10_000;
    let parts = (0..=MAX_FUNCTIONS / PART).map(|at| part(at * PART..(at + 1) * PART, false));
    let lines: Vec<Bytes> = std::iter::once(hello("b")).chain(parts).collect();
    let mut follower = start_scripted(lines).await;
    let cause = format!("it reports more than {MAX_FUNCTIONS} functions");
    follower.wait_cause("b", &cause).await;
}

#[tokio::test]
async fn another_node_at_the_address_is_down() {
    let mut follower = start_scripted(vec![hello("c"), part(0..1, true)]).await;
    follower.wait_cause("b", "the node says that it is c").await;
}

#[tokio::test]
async fn a_state_of_a_newer_release_is_understood() {
    let newer = "{\"weather\":{\"rain\":1}}\n";
    let lines = vec![hello("b"), newer.into(), part(0..2, true), newer.into()];
    let mut follower = start_scripted(lines).await;
    let status = follower.wait_up("b").await;
    assert_eq!(status.functions.len(), 2);
    assert_eq!(status.version.as_deref(), Some("9.9.9"));
}

#[tokio::test]
async fn a_silent_stream_brings_a_node_down() {
    let mut follower = start_scripted(vec![hello("b"), part(0..2, true)]).await;
    follower.wait_up("b").await;
    follower
        .wait_cause("b", "no line of its state came in time")
        .await;
}

#[tokio::test]
async fn a_gap_starts_the_subscription_again_and_the_state_stays() {
    let (first, late) = (vec![hello("b"), part(0..2, true)], vec![change(2)]);
    let missed = Script { first, late };
    let (first, late) = (vec![hello("b"), part(0..3, true)], vec![change(1)]);
    let node = ScriptedNode::new(vec![missed, Script { first, late }]);
    let mut follower = node.start().await;
    assert_eq!(follower.wait_up("b").await.functions.len(), 2);
    node.is_released.send_replace(true);
    let status = follower
        .wait("b", |status| {
            let cause = down_cause(status).unwrap_or_default();
            assert!(
                !cause.contains("does not follow"),
                "it stays in use: {cause}"
            );
            assert!(!is_up(status) || status.functions.len() >= 2);
            status.functions.len() == 3
        })
        .await;
    assert!(status.reconnects >= 1);
}

#[tokio::test]
async fn a_node_whose_frames_are_wrong_again_is_down() {
    let (first, late) = (vec![hello("b"), part(0..2, true)], vec![change(2)]);
    let node = ScriptedNode::new(vec![Script { first, late }]);
    let mut follower = node.start().await;
    follower.wait_up("b").await;
    node.is_released.send_replace(true);
    follower
        .wait_cause("b", "change 2 does not follow change 0")
        .await;
}
