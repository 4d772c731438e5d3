//! A peer whose lines and pings have another shape: older or newer releases of the same protocol.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nearpath_testkit::{eventually, need_root};
use nearpath_wire::node_tls::{NodeCredentials, NodeTls};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

use super::functions::{counted, write_counted, write_handler};
use super::machines::{Machines, NODE_PORT, certificates};
use super::scripted_peer::{node_credentials, read_state, trust};

/// Node of the scripted peer.
const PEER: &str = "b";

/// Lines of a state stream that only another release sends.
fn unknown_lines(vectors: &Value) -> Vec<String> {
    let ignored = vectors["ignored"].as_array().unwrap().iter();
    let more = [
        r#"{"weather":{"rain":1}}"#,
        r#"{"change":{"number":4,"set":{"task.openfaas-fn":{"ready":1,"requests":0,"cpu":0.5}},"zone":"z"}}"#,
    ];
    let lines = ignored.map(|line| line.as_str().unwrap().to_owned());
    lines.chain(more.map(str::to_owned)).collect()
}

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../../contract/vectors/node.json")).unwrap()
}

fn texts(lines: &Value) -> Vec<String> {
    let lines = lines.as_array().unwrap().iter();
    lines
        .map(|line| line.as_str().unwrap().to_owned())
        .collect()
}

fn service(
    lines: Arc<Vec<String>>,
    request: &Request<Incoming>,
) -> Response<BoxBody<Bytes, Infallible>> {
    if request.uri().path().ends_with("/ping") {
        let micros = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let micros = micros.unwrap().as_micros();
        let text =
            format!(r#"{{"time":{micros},"incarnation":"0123456789abcdef","load":{{"cpu":1}}}}"#);
        return Response::new(Full::from(text).boxed());
    }
    let first = lines
        .iter()
        .map(|line| format!("{line}\n"))
        .collect::<String>();
    let lines = stream::unfold(Some(first), |first| async {
        let line = match first {
            Some(lines) => lines,
            None => {
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                "{\"heartbeat\":true,\"age\":1}\n".to_owned()
            }
        };
        Some((Ok(Frame::data(Bytes::from(line))), None))
    });
    Response::new(BodyExt::boxed(StreamBody::new(lines)))
}

/// Serves the state of node b with these lines, on its machine.
async fn serve_lines(machines: &Machines, lines: Vec<String>) {
    let folder = certificates(&machines.authority(), PEER);
    let credentials = NodeCredentials::load(&folder, SystemTime::now()).unwrap();
    let tls = NodeTls::new(credentials).unwrap();
    let acceptor = TlsAcceptor::from(tls.tls_server_config().clone());
    let bind = || std::net::TcpListener::bind(("0.0.0.0", NODE_PORT)).unwrap();
    let listener = machines.machines[1].namespace.enter(bind);
    listener.set_nonblocking(true).unwrap();
    let (listener, lines) = (TcpListener::from_std(listener).unwrap(), Arc::new(lines));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, lines) = (acceptor.clone(), lines.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let respond = service_fn(move |request| {
                    let response = service(lines.clone(), &request);
                    async move { Ok::<_, Infallible>(response) }
                });
                let http = http1::Builder::new();
                let _ = http.serve_connection(TokioIo::new(stream), respond).await;
            });
        }
    });
}

/// Starts node a beside a scripted peer.
async fn start_beside(lines: Vec<String>) -> Machines {
    let mut machines = Machines::new(&["a", PEER]);
    write_handler(&machines);
    let function = counted("task", "nodes: [b],");
    machines.write("stack.yml", &format!("functions:\n{function}"));
    serve_lines(&machines, lines).await;
    machines.start(0).await;
    machines
}

#[tokio::test]
async fn a_node_uses_a_peer_with_unknown_lines_and_fields() {
    need_root!();
    let vectors = vectors();
    let lines = [texts(&vectors["stream"]), unknown_lines(&vectors)].concat();
    let machines = start_beside(lines).await;
    machines.wait_peers_up(0, 1).await;
    let offset = "nearpath_peer_round_trip_seconds{node=\"b\"}";
    eventually("its pings are read", async || {
        machines.metric(0, offset).await > 0.0
    })
    .await;
    assert!(
        !machines.logs().contains("node is down"),
        "{}",
        machines.logs()
    );
}

/// Control: a stream with a gap is refused.
#[tokio::test]
async fn control_a_stream_with_a_gap_is_a_fault() {
    need_root!();
    let vectors = vectors();
    let is_gap = |stream: &&Value| stream["about"] == "gap";
    let gap = vectors["refused"].as_array().unwrap().iter().find(is_gap);
    let machines = start_beside(texts(&gap.unwrap()["lines"])).await;
    let fault = "does not follow change";
    eventually(fault, async || machines.logs().contains(fault)).await;
}

/// Releases that do not know of processes that replace each other see one that drains and ends.
#[tokio::test]
async fn a_node_of_an_older_release_sees_a_replaced_process_drain() {
    need_root!();
    let mut machines = Machines::new(&["b", "old"]);
    write_counted(&machines, &["b"]);
    machines.start(0).await;
    machines.wait_answered(0, "/function/task").await;
    let (addr, authority) = (machines.machines[0].node_port(), machines.authority());
    let identity = || (node_credentials(&authority, "old"), trust(&authority));
    let (begun, has_begun) = oneshot::channel();
    let reading = tokio::spawn(read_state(addr, identity(), begun));
    has_begun.await.unwrap();
    let mut replaced = machines.take_over(0).await;
    let lines = nearpath_testkit::within(reading).await.unwrap();
    let position = |line: &str| lines.iter().position(|one| one == line);
    let (end, draining) = (
        position(r#"{"replaced":true}"#),
        position(r#"{"draining":true}"#),
    );
    assert!(end.is_some() && end < draining, "{lines:?}");
    assert!(replaced.wait_exit().await.success(), "{}", replaced.log());
    let (begun, has_begun) = oneshot::channel();
    let reading = tokio::spawn(read_state(addr, identity(), begun));
    has_begun.await.unwrap();
    machines.end(0, rustix::process::Signal::KILL);
    let next = nearpath_testkit::within(reading).await.unwrap();
    assert_ne!(next[0], lines[0], "another process answers");
    for state in [&lines[1], &next[1]] {
        assert!(state.contains("task.openfaas-fn"), "{state}");
    }
}
