//! Streams to functions on other nodes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nearpath_internode::{
    DialedStream, NodeDialError, NodeDialer, PeerAvailability, PeerClient, PeerStates, PeerStatus,
    PeerStream, StreamError, parse_stream_request, stream_accepted, stream_refused,
};
use nearpath_testkit::within;
use nearpath_types::{
    FunctionLoad, FunctionPolicy, NodeName, NodeStreamRequest, PeerNode, PlatformError, Reason,
};
use nearpath_wire::Body;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;

use crate::fixture::name;

const LIMIT: Duration = Duration::from_secs(60);
/// Limit that passes.
const SHORT: Duration = Duration::from_millis(20);

/// Plays the nodes: `echo` accepts, `mute` never responds, and all others refuse.
struct ScriptedNodes;

impl NodeDialer for ScriptedNodes {
    fn dial(
        &self,
        node: &NodeName,
        _: SocketAddr,
    ) -> BoxFuture<'static, Result<Box<dyn DialedStream>, NodeDialError>> {
        let (client, server) = duplex(1024);
        tokio::spawn(serve(node.to_string(), server));
        let client: Box<dyn DialedStream> = Box::new(client);
        std::future::ready(Ok(client)).boxed()
    }
}

async fn serve(node: String, stream: DuplexStream) {
    let service = service_fn(move |request| respond(node.clone(), request));
    let http = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // A client that leaves is an error here.
    let _ = http.with_upgrades().await;
}

async fn respond(
    node: String,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, std::convert::Infallible> {
    assert_eq!(parse_stream_request(&request).unwrap(), stream_request());
    match node.as_str() {
        "echo" => {
            let upgraded = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut stream = TokioIo::new(upgraded.await.unwrap());
                let mut bytes = Vec::new();
                // The answer comes after the end of the question: each direction ends by itself.
                stream.read_to_end(&mut bytes).await.unwrap();
                stream.write_all(&bytes).await.unwrap();
                stream.shutdown().await.unwrap();
            });
            Ok(stream_accepted())
        }
        "mute" => std::future::pending().await,
        _ => {
            let error = PlatformError::new("node", Reason::NotHere, "it is not here");
            Ok(stream_refused(&error))
        }
    }
}

fn stream_request() -> NodeStreamRequest {
    NodeStreamRequest {
        caller: "cart.shop".parse().unwrap(),
        callee: "store.shop".parse().unwrap(),
        port: 6379,
    }
}

/// States of nodes that are up, and may wake the callee.
fn states(names: &[&str]) -> Arc<PeerStates> {
    let status = |text: &&str| {
        let node = PeerNode {
            name: name(text),
            addr: ([127, 0, 0, 1], 1).into(),
            incarnation: 1,
        };
        let mut status = PeerStatus {
            availability: PeerAvailability::Up,
            node: Some(node.into()),
            ..PeerStatus::new(Instant::now())
        };
        let callee = stream_request().callee;
        // No ready instance: a stream may wake one.
        status.functions.insert(callee, FunctionLoad::default());
        (name(text), Arc::new(status))
    };
    let peers: BTreeMap<_, _> = names.iter().map(status).collect();
    Arc::new(PeerStates { peers })
}

/// A client, and the states of the nodes that it knows.
struct StreamClient {
    states: watch::Sender<Arc<PeerStates>>,
    client: PeerClient,
}

impl StreamClient {
    fn new(names: &[&str]) -> Self {
        let states = watch::Sender::new(states(names));
        let client = PeerClient::new(Arc::new(ScriptedNodes), states.subscribe());
        Self { states, client }
    }

    async fn open(&self) -> Result<PeerStream, StreamError> {
        self.open_within(LIMIT).await
    }

    async fn open_within(&self, limit: Duration) -> Result<PeerStream, StreamError> {
        let (request, policy) = (stream_request(), FunctionPolicy::default());
        let opening = self.client.open_stream(&request, &policy, limit);
        within(opening).await
    }
}

#[tokio::test]
async fn a_refused_stream_goes_to_the_next_node() {
    let test = StreamClient::new(&["away", "b", "echo"]);
    let mut opened = test.open().await.unwrap();
    assert_eq!(opened.node, name("echo"));
    opened.stream.write_all(b"to the end").await.unwrap();
    opened.stream.shutdown().await.unwrap();
    let mut answer = String::new();
    let read = opened.stream.read_to_string(&mut answer);
    within(read).await.unwrap();
    assert_eq!(answer, "to the end");
}

#[tokio::test]
async fn the_error_has_the_causes_of_all_nodes() {
    let failed = StreamClient::new(&["away", "b"]).open().await;
    let text = failed.err().unwrap().to_string();
    for node in ["node away", "node b"] {
        let cause =
            format!("{node}: status 503 Service Unavailable: node: not_here: it is not here");
        assert!(text.contains(&cause), "{text}");
    }
}

#[tokio::test]
async fn a_stream_waits_for_a_node_and_for_its_answer() {
    let test = StreamClient::new(&[]);
    let failed = test.open_within(SHORT).await.err().unwrap();
    assert!(matches!(failed, StreamError::NoNode(SHORT)), "{failed}");
    let coming = async {
        tokio::task::yield_now().await;
        test.states.send_replace(states(&["echo"]));
    };
    let (opened, ()) = tokio::join!(test.open(), coming);
    assert_eq!(opened.unwrap().node, name("echo"));
    test.states.send_replace(states(&["mute"]));
    let failed = test.open_within(SHORT).await.err().unwrap();
    assert!(matches!(failed, StreamError::Timeout(SHORT)), "{failed}");
}

#[tokio::test]
async fn a_node_that_goes_down_ends_its_streams() {
    let test = StreamClient::new(&["echo", "mute"]);
    let opened = test.open().await.unwrap();
    test.states.send_replace(states(&["mute"]));
    within(opened.lost).await;
    let going = async {
        tokio::task::yield_now().await;
        test.states.send_replace(states(&[]));
    };
    let (failed, ()) = tokio::join!(test.open(), going);
    let text = failed.err().unwrap().to_string();
    assert_eq!(text, "node mute: it went down");
}
