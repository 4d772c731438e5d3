//! Calls over QUIC: a node inside the test sends the watchdog its identity.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use nearpath_wire::quic::EarlyData;

use crate::contract::node::{IdentityFixture, run_on_one_thread, start_with_identity};
use crate::contract::support::start_tenant;

async fn echo(request: Request<Incoming>) -> Response<http_body_util::Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    Response::builder()
        .header("x-path", path)
        .body(http_body_util::Full::new(body))
        .unwrap()
}

fn post(body: &'static str) -> Request<Bytes> {
    Request::post("/path")
        .body(Bytes::from_static(body.as_bytes()))
        .unwrap()
}

#[test]
fn the_first_flight_reaches_code_that_knows_only_http() {
    run_on_one_thread(async {
        let node = IdentityFixture::new();
        let (watchdog, _pipe) =
            start_with_identity(start_tenant(echo).await, &node.provision.encode(), &[]);
        watchdog.stderr.wait_for("QUIC");
        let line = node.dial(&watchdog).await;
        assert!(line.is_early());
        let answer = line
            .call_buffered(post("over QUIC"), EarlyData::Allowed)
            .await
            .unwrap();
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["x-path"]),
            (200, &"/path".parse().unwrap())
        );
        assert_eq!(
            answer.into_body().collect().await.unwrap().to_bytes(),
            "over QUIC"
        );
    });
}

#[test]
fn an_unknown_caller_is_refused_and_logged() {
    run_on_one_thread(async {
        let node = IdentityFixture::new();
        let (watchdog, _pipe) =
            start_with_identity(start_tenant(echo).await, &node.provision.encode(), &[]);
        watchdog.stderr.wait_for("QUIC on");
        let refusal = match node.dial_as_unknown(&watchdog).await {
            Err(error) => error.to_string(),
            Ok(line) => line
                .call_buffered(post("in"), EarlyData::Allowed)
                .await
                .unwrap_err()
                .to_string(),
        };
        assert!(refusal.contains("invalid peer certificate"), "{refusal}");
        let line = watchdog.stderr.wait_for("callers refused so far");
        assert!(
            line.contains("the last was 127.0.0.1:") && line.contains("invalid peer certificate"),
            "{line}"
        );
    });
}

#[test]
fn an_invalid_provision_leaves_plain_http_working() {
    run_on_one_thread(async {
        let (watchdog, _pipe) =
            start_with_identity(start_tenant(echo).await, &[3, 0, 0, 0, 9, 9, 9], &[]);
        let log_line = watchdog.stderr.wait_for("QUIC");
        assert!(log_line.contains("kind 9"), "{log_line}");
        assert_eq!(watchdog.post("/", "still").await, (200, "still".to_owned()));
    });
}
