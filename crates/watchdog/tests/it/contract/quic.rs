//! Calls over QUIC: the watchdog is told who it is by a node inside the test.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use nearpath_wire::quic::Early;

use crate::contract::node::{Node, run, watchdog};
use crate::contract::support::tenant;

async fn echo(request: Request<Incoming>) -> Response<http_body_util::Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    Response::builder().header("x-path", path).body(http_body_util::Full::new(body)).unwrap()
}

fn post(body: &'static str) -> Request<Bytes> {
    Request::post("/path").body(Bytes::from_static(body.as_bytes())).unwrap()
}

#[test]
fn the_first_flight_reaches_code_that_knows_only_http() {
    run(async {
        let node = Node::new();
        let (watchdog, _pipe) = watchdog(tenant(echo).await, &node.provision.write(), &[]);
        watchdog.stderr.find("QUIC");
        let line = node.dial(&watchdog).await;
        assert!(line.is_early());
        let answer = line.call_whole(post("over QUIC"), Early::Allowed).await.unwrap();
        assert_eq!((answer.status().as_u16(), &answer.headers()["x-path"]), (200, &"/path".parse().unwrap()));
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "over QUIC");
    });
}

#[test]
fn a_stranger_is_told_and_written_down() {
    run(async {
        let node = Node::new();
        let (watchdog, _pipe) = watchdog(tenant(echo).await, &node.provision.write(), &[]);
        watchdog.stderr.find("QUIC on");
        let told = match node.dial_as_unknown(&watchdog).await {
            Err(error) => error.to_string(),
            Ok(line) => line.call_whole(post("in"), Early::Allowed).await.unwrap_err().to_string(),
        };
        assert!(told.contains("invalid peer certificate"), "{told}");
        let line = watchdog.stderr.find("callers refused so far");
        assert!(line.contains("the last was 127.0.0.1:") && line.contains("invalid peer certificate"), "{line}");
    });
}

#[test]
fn what_is_no_provision_leaves_http_as_it_was() {
    run(async {
        let (watchdog, _pipe) = watchdog(tenant(echo).await, &[3, 0, 0, 0, 9, 9, 9], &[]);
        let told = watchdog.stderr.find("QUIC");
        assert!(told.contains("kind 9"), "{told}");
        assert_eq!(watchdog.post("/", "still").await, (200, "still".to_owned()));
    });
}
