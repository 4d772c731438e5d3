//! Malformed and ambiguous requests: no smuggled request reaches an instance.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Response;
use nearpath_testkit::eventually;

use crate::fixture::{TestGateway, full_body, send_raw, start_instance};

async fn start_counting_instance() -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    let addr = start_instance(move |request| {
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            let _ = http_body_util::BodyExt::collect(request.into_body()).await;
            Response::new(full_body("ok"))
        }
    })
    .await;
    (addr, seen)
}

/// Malformed and ambiguous requests, by what is wrong with them.
const MALFORMED_REQUESTS: &[(&str, &str)] = &[
    (
        "conflicting lengths",
        "POST /function/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    ),
    (
        "a length that is no number",
        "POST /function/echo HTTP/1.1\r\nhost: a\r\ncontent-length: +1\r\n\r\na",
    ),
    ("no host", "GET /function/echo HTTP/1.1\r\n\r\n"),
    (
        "two hosts",
        "GET /function/echo HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    ),
    (
        "a folded header",
        "GET /function/echo HTTP/1.1\r\nhost: a\r\nx: 1\r\n 2\r\n\r\n",
    ),
    (
        "NUL in a value",
        "GET /function/echo HTTP/1.1\r\nhost: a\r\nx: 1\0 2\r\n\r\n",
    ),
    (
        "CR in a value",
        "GET /function/echo HTTP/1.1\r\nhost: a\r\nx: 1\r2\r\n\r\n",
    ),
    (
        "a space before the colon",
        "GET /function/echo HTTP/1.1\r\nhost: a\r\nx : 1\r\n\r\n",
    ),
    (
        "a space in the target",
        "GET /function/echo /x HTTP/1.1\r\nhost: a\r\n\r\n",
    ),
    (
        "an unknown version",
        "GET /function/echo HTTP/1.9\r\nhost: a\r\n\r\n",
    ),
    (
        "a coding that is not chunked last",
        "POST /function/echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked twice",
        "POST /function/echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "two fields of codings",
        "POST /function/echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "a host with a path",
        "GET /function/echo HTTP/1.1\r\nhost: h/x\r\n\r\n",
    ),
    (
        "a host with a user",
        "GET /function/echo HTTP/1.1\r\nhost: user@h\r\n\r\n",
    ),
    (
        "a list of hosts",
        "GET /function/echo HTTP/1.1\r\nhost: h,i\r\n\r\n",
    ),
    (
        "a host with spaces",
        "GET /function/echo HTTP/1.1\r\nhost: a b/c@d\r\n\r\n",
    ),
    (
        "a host beyond ASCII",
        "GET /function/echo HTTP/1.1\r\nhost: h\u{e4}\r\n\r\n",
    ),
    (
        "a user in the target",
        "GET http://user@h/function/echo HTTP/1.1\r\nhost: h\r\n\r\n",
    ),
    ("rubbish", "\x16\x03\x01\x02\r\n\r\n"),
];

#[tokio::test]
async fn malformed_requests_are_400_and_reach_no_instance() {
    let fixture = TestGateway::start();
    let (addr, seen) = start_counting_instance().await;
    fixture.publish_echo(addr);
    let mut line_count = 0;
    for (case, bytes) in MALFORMED_REQUESTS {
        let answer = send_raw(fixture.public, bytes.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{case}: {answer:?}");
        assert!(
            answer.contains("\r\nx-nearpath-reason: bad_request\r\n"),
            "{case}: {answer:?}"
        );
        assert!(
            answer.contains("\r\n\r\ngateway: bad_request: "),
            "{case}: {answer:?}"
        );
        line_count += 1;
        eventually("one line each", async || {
            fixture.log.parse_lines().len() == line_count
        })
        .await;
        assert_eq!(
            fixture.log.parse_lines()[line_count - 1]["status"],
            400,
            "{case}"
        );
    }
    assert_eq!(seen.load(Ordering::SeqCst), 0);
    assert!(
        fixture
            .encode_metrics()
            .contains(r#"nearpath_refused_total{function_name="",reason="bad_request"}"#)
    );
}

#[tokio::test]
async fn garbage_after_a_request_is_400() {
    let fixture = TestGateway::start();
    let (addr, _) = start_counting_instance().await;
    fixture.publish_echo(addr);
    let good = "POST /function/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi";
    let answers = send_raw(
        fixture.public,
        format!("{good}{good}rubbish\r\n\r\n").as_bytes(),
    )
    .await;
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
    assert!(
        answers.contains("HTTP/1.1 400 ") && answers.ends_with("is not HTTP/1.1 (RFC 9112)\n"),
        "{answers}"
    );
}

#[tokio::test]
async fn a_400_from_a_function_keeps_its_body() {
    let fixture = TestGateway::start();
    fixture.publish_echo(
        start_instance(async |_| {
            let mut response = Response::new(full_body(""));
            *response.status_mut() = http::StatusCode::BAD_REQUEST;
            response
        })
        .await,
    );
    let answer = send_raw(
        fixture.public,
        b"GET /function/echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
    )
    .await;
    assert!(
        answer.starts_with("HTTP/1.1 400 ") && answer.ends_with("\r\n\r\n"),
        "{answer}"
    );
    assert!(!answer.contains("x-nearpath-reason"), "{answer}");
}

#[tokio::test]
async fn a_bad_chunk_ends_the_request() {
    let fixture = TestGateway::start();
    let (addr, _) = start_counting_instance().await;
    fixture.publish_echo(addr);
    for chunk in [
        "zz\r\nab\r\n0\r\n\r\n",
        "1\r\nabc\r\n0\r\n\r\n",
        "fffffffffffffffff\r\na\r\n",
    ] {
        let head = "POST /function/echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
        let answer = send_raw(fixture.public, format!("{head}{chunk}").as_bytes()).await;
        assert!(
            answer.starts_with("HTTP/1.1 400 ") && answer.contains("chunked"),
            "{chunk:?}: {answer}"
        );
    }
}

#[tokio::test]
async fn both_lengths_are_read_as_chunked_and_the_connection_closes() {
    let fixture = TestGateway::start();
    let (addr, seen) = start_counting_instance().await;
    fixture.publish_echo(addr);
    let smuggled = "GET /function/echo?second HTTP/1.1\r\nhost: a\r\n\r\n";
    let request = format!(
        "POST /function/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}"
    );
    // Ends because the gateway closes.
    let answer = send_raw(fixture.public, request.as_bytes()).await;
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    assert!(seen.load(Ordering::SeqCst) <= 1);
}
