//! Requests that are not HTTP, or HTTP of two meanings: never a second request at the instance.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Response;
use nearpath_testkit::eventually;

use crate::house::{House, full, raw, serving};

async fn counting() -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    let at = serving(move |request| {
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            let _ = http_body_util::BodyExt::collect(request.into_body()).await;
            Response::new(full("ok"))
        }
    })
    .await;
    (at, seen)
}

#[tokio::test]
async fn what_is_not_http_is_400_and_goes_nowhere() {
    let house = House::open();
    let (at, seen) = counting().await;
    house.echo(at);
    let mut told = 0;
    for (what, bytes) in [
        (
            "conflicting lengths",
            "POST /function/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        ),
        ("a length that is no number", "POST /function/echo HTTP/1.1\r\nhost: a\r\ncontent-length: +1\r\n\r\na"),
        ("no host", "GET /function/echo HTTP/1.1\r\n\r\n"),
        ("two hosts", "GET /function/echo HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n"),
        ("a folded header", "GET /function/echo HTTP/1.1\r\nhost: a\r\nx: 1\r\n 2\r\n\r\n"),
        ("NUL in a value", "GET /function/echo HTTP/1.1\r\nhost: a\r\nx: 1\0 2\r\n\r\n"),
        ("CR in a value", "GET /function/echo HTTP/1.1\r\nhost: a\r\nx: 1\r2\r\n\r\n"),
        ("a space before the colon", "GET /function/echo HTTP/1.1\r\nhost: a\r\nx : 1\r\n\r\n"),
        ("a space in the target", "GET /function/echo /x HTTP/1.1\r\nhost: a\r\n\r\n"),
        ("an unknown version", "GET /function/echo HTTP/1.9\r\nhost: a\r\n\r\n"),
        (
            "a coding that is not chunked last",
            "POST /function/echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        ),
        ("rubbish", "\x16\x03\x01\x02\r\n\r\n"),
    ] {
        let answer = raw(house.public, bytes.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{what}: {answer:?}");
        assert!(answer.contains("\r\nx-nearpath-reason: bad_request\r\n"), "{what}: {answer:?}");
        assert!(answer.contains("\r\n\r\ngateway: bad_request: "), "{what}: {answer:?}");
        told += 1;
        eventually("one line each", async || house.log.all().len() == told).await;
        assert_eq!(house.log.all()[told - 1]["status"], 400, "{what}");
    }
    assert_eq!(seen.load(Ordering::SeqCst), 0);
    assert!(house.metrics().contains(r#"nearpath_refused_total{function_name="",reason="bad_request"}"#));
}

#[tokio::test]
async fn rubbish_after_a_request_is_told_as_such() {
    let house = House::open();
    let (at, _) = counting().await;
    house.echo(at);
    let good = "POST /function/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi";
    let answers = raw(house.public, format!("{good}{good}rubbish\r\n\r\n").as_bytes()).await;
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
    assert!(answers.contains("HTTP/1.1 400 ") && answers.ends_with("is not HTTP/1.1 (RFC 9112)\n"), "{answers}");
}

#[tokio::test]
async fn a_function_keeps_the_words_of_its_own_400() {
    let house = House::open();
    house.echo(
        serving(async |_| {
            let mut response = Response::new(full(""));
            *response.status_mut() = http::StatusCode::BAD_REQUEST;
            response
        })
        .await,
    );
    let answer = raw(house.public, b"GET /function/echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.ends_with("\r\n\r\n"), "{answer}");
    assert!(!answer.contains("x-nearpath-reason"), "{answer}");
}

#[tokio::test]
async fn a_bad_chunk_ends_the_request() {
    let house = House::open();
    let (at, _) = counting().await;
    house.echo(at);
    for chunk in ["zz\r\nab\r\n0\r\n\r\n", "1\r\nabc\r\n0\r\n\r\n", "fffffffffffffffff\r\na\r\n"] {
        let head = "POST /function/echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
        let answer = raw(house.public, format!("{head}{chunk}").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("chunked"), "{chunk:?}: {answer}");
    }
}

#[tokio::test]
async fn both_lengths_are_read_as_chunked_and_the_connection_closes() {
    let house = House::open();
    let (at, seen) = counting().await;
    house.echo(at);
    let smuggled = "GET /function/echo?second HTTP/1.1\r\nhost: a\r\n\r\n";
    let request = format!(
        "POST /function/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}"
    );
    let answer = raw(house.public, request.as_bytes()).await; // ends because the gateway closes
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    assert!(seen.load(Ordering::SeqCst) <= 1);
}
