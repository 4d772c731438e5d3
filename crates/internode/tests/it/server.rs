//! The server's responses, read without a follower.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use nearpath_internode::peer_view::PeerView;
use nearpath_internode::protocol::{LineBuffer, PING_PATH, PingResponse, STATE_PATH, StateFrame};
use nearpath_internode::{LocalState, MAX_PEER_SUBSCRIBERS, MAX_SUBSCRIBERS, StateServer};
use nearpath_testkit::within;
use nearpath_types::NodeName;
use nearpath_wire::Body;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::sync::watch;

use crate::fixture::{TestNode, load, name, new_state};

fn new_server() -> (watch::Sender<Arc<LocalState>>, StateServer) {
    let (state, states) = watch::channel(Arc::new(new_state("b")));
    (
        state,
        StateServer::new(states, tokio::sync::watch::channel(Default::default()).1),
    )
}

async fn request(server: &StateServer, peer: &NodeName, path: &str) -> Response<Body> {
    let request = Request::get(path).body(Body::empty()).unwrap();
    server.respond(peer, request).await
}

async fn next_bytes(body: &mut Body) -> Option<Bytes> {
    let frame = within(body.frame()).await?;
    Some(frame.unwrap().into_data().unwrap())
}

#[tokio::test]
async fn a_ping_tells_the_time_and_the_run() {
    let (state, server) = new_server();
    let response = request(&server, &name("a"), PING_PATH).await;
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let ping: PingResponse = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(ping.incarnation, state.borrow().facts().incarnation);
    // Later than this test was written, in microseconds.
    assert!(ping.time > 1_700_000_000_000_000, "{}", ping.time);
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let (_state, server) = new_server();
    let response = request(&server, &name("a"), "/node/v2/state").await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    for path in [STATE_PATH, PING_PATH] {
        let post = Request::builder().method(Method::POST).uri(path);
        let response = server
            .respond(&name("a"), post.body(Body::empty()).unwrap())
            .await;
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(response.headers()[header::ALLOW], "GET");
    }
}

#[tokio::test]
async fn one_subscription_too_many_ends_the_oldest_of_the_node() {
    let (_state, server) = new_server();
    let mut bodies = Vec::new();
    for _ in 0..=MAX_PEER_SUBSCRIBERS {
        let response = request(&server, &name("a"), STATE_PATH).await;
        let mut body = response.into_body();
        let hello = next_bytes(&mut body).await.unwrap();
        assert!(hello.starts_with(b"{\"hello\":"));
        bodies.push(body);
    }
    while next_bytes(&mut bodies[0]).await.is_some() {}
    assert!(
        next_bytes(&mut bodies[1]).await.is_some(),
        "the others go on"
    );
}

#[tokio::test]
async fn subscriptions_in_all_are_bounded() {
    let (_state, server) = new_server();
    let mut responses = Vec::new();
    for number in 0..MAX_SUBSCRIBERS {
        responses.push(request(&server, &name(&format!("n{number}")), STATE_PATH).await);
    }
    assert!(
        responses
            .iter()
            .all(|response| response.status() == StatusCode::OK)
    );
    let refused = request(&server, &name("one-more"), STATE_PATH).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    drop(responses);
    let admitted = request(&server, &name("one-more"), STATE_PATH).await;
    assert_eq!(admitted.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_stream_ends_with_the_node() {
    let (state, server) = new_server();
    let mut body = request(&server, &name("a"), STATE_PATH).await.into_body();
    next_bytes(&mut body).await.unwrap();
    drop(state);
    while next_bytes(&mut body).await.is_some() {}
}

/// Reads a response's frames until the view has the wanted functions.
async fn read_until_functions(
    stream: &mut tokio::net::TcpStream,
    wanted: &BTreeMap<String, u32>,
) -> Vec<StateFrame> {
    let (mut lines, mut frames) = (LineBuffer::default(), Vec::new());
    let mut view = PeerView::new(name("b"));
    let mut piece = vec![0; 64 * 1024];
    loop {
        let count = within(stream.read(&mut piece)).await.unwrap();
        assert!(count > 0, "the stream goes on");
        lines.push(&piece[..count]);
        while let Some(line) = lines.take_line().unwrap() {
            // Heads and sizes of chunks are lines, too.
            if !line.starts_with(b"{") {
                continue;
            }
            let frame = StateFrame::parse(&line).unwrap();
            view.apply(frame.clone()).unwrap();
            frames.push(frame);
        }
        let functions = view.functions();
        let ready = functions
            .iter()
            .map(|(id, load)| (id.to_string(), load.ready));
        if ready.collect::<BTreeMap<_, _>>() == *wanted {
            return frames;
        }
    }
}

#[tokio::test]
async fn a_slow_reader_skips_versions_and_ends_with_the_newest() {
    const VERSIONS: u32 = 400;
    let node = TestNode::start("b").await;
    let socket = TcpSocket::new_v4().unwrap();
    // Small, so that the server soon has to wait.
    socket.set_recv_buffer_size(4 * 1024).unwrap();
    let mut stream = socket.connect(node.addr).await.unwrap();
    let head = format!("GET {STATE_PATH} HTTP/1.1\r\nhost: b\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let names: Vec<String> = (0..1_000).map(|number| format!("f{number}")).collect();
    for version in 1..=VERSIONS {
        let functions: Vec<_> = names
            .iter()
            .map(|id| (id.as_str(), load(version, 0)))
            .collect();
        node.set(&functions);
        // The server's task runs, and would queue each version if it could.
        tokio::task::yield_now().await;
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let wanted = names
        .iter()
        .map(|id| (format!("{id}.openfaas-fn"), VERSIONS));
    let frames = read_until_functions(&mut stream, &wanted.collect()).await;
    let is_change = |frame: &&StateFrame| matches!(frame, StateFrame::Change(_));
    let changes = frames.iter().filter(is_change).count();
    assert!(
        changes < VERSIONS as usize / 2,
        "{changes} changes of {VERSIONS} versions"
    );
}
