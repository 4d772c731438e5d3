//! Heads that mean the same to the gateway and to the function: host, cookies, and the fields that
//! only the platform sets.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use nearpath_types::{FunctionPolicy, InstanceState, RoutingSnapshot};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixture::{
    self, TestGateway, collect_response, connect_from, connect_http2, full_body, read_head,
    send_and_collect, send_raw, start_instance, start_mirror, start_scripted,
};

/// Returns the lines of a mirrored request that begin with this name.
fn mirrored<'a>(body: &'a str, name: &str) -> Vec<&'a str> {
    let prefix = format!("{name}: ");
    body.lines()
        .filter_map(|line| line.strip_prefix(&prefix))
        .collect()
}

#[tokio::test]
async fn the_authority_and_the_target_win_over_host() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let mut client = connect_http2(fixture.public).await;
    let request = Request::get("http://shop.example/function/echo")
        .header("host", "other.example")
        .body(full_body(""))
        .unwrap();
    let answer = collect_response(client.send_request(request).await.unwrap()).await;
    assert_eq!(mirrored(&answer.body, "host"), ["shop.example"]);
    assert_eq!(mirrored(&answer.body, "x-forwarded-host"), ["shop.example"]);

    let absolute = "GET http://shop.example/function/echo HTTP/1.1\r\nhost: other.example\r\nconnection: close\r\n\r\n";
    let answer = send_raw(fixture.public, absolute.as_bytes()).await;
    assert!(answer.contains("\nhost: shop.example\n"), "{answer}");
    assert!(!answer.contains("other.example"), "{answer}");
}

#[tokio::test]
async fn an_invalid_authority_is_400_over_http_2() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let mut client = connect_http2(fixture.public).await;
    for uri in ["http://user@h/function/echo", "http://h,i/function/echo"] {
        let request = Request::get(uri).body(full_body("")).unwrap();
        let answer = collect_response(client.send_request(request).await.unwrap()).await;
        assert_eq!(answer.status, 400, "{uri}: {}", answer.body);
    }
}

#[tokio::test]
async fn split_cookies_reach_the_function_as_one_field() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let request = || {
        Request::get("http://h/function/echo")
            .header("cookie", "session=1")
            .header("cookie", "cart=2; theme=3")
            .body(full_body(""))
            .unwrap()
    };
    let mut client = connect_http2(fixture.public).await;
    let answer = collect_response(client.send_request(request()).await.unwrap()).await;
    assert_eq!(
        mirrored(&answer.body, "cookie"),
        ["session=1; cart=2; theme=3"]
    );
    let answer = send_and_collect(fixture.public, request()).await;
    assert_eq!(
        mirrored(&answer.body, "cookie"),
        ["session=1; cart=2; theme=3"]
    );
}

#[tokio::test]
async fn callers_cannot_forge_fields_of_the_platform() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let request = Request::get("/function/echo")
        .header("x-nearpath-caller", "admin.openfaas-fn")
        .header("x-nearpath-anything", "1")
        .header("x-openfaas-internal", "gateway")
        .header("forwarded", "for=10.0.0.1")
        .header("x-forwarded-for", "10.0.0.1")
        .body(full_body(""))
        .unwrap();
    let answer = send_and_collect(fixture.public, request).await;
    for forged in ["x-nearpath-", "x-openfaas-internal", "\nforwarded"] {
        assert!(!answer.body.contains(forged), "{}", answer.body);
    }
    assert_eq!(
        mirrored(&answer.body, "x-forwarded-for"),
        ["10.0.0.1, 127.0.0.1"]
    );
}

#[tokio::test]
async fn a_response_names_one_origin() {
    let fixture = TestGateway::start();
    let doubled = start_instance(async |_| {
        let response = Response::builder()
            .status(500)
            .header("x-openfaas-internal", "of-watchdog")
            .header("x-openfaas-internal", "function");
        response.body(full_body("x")).unwrap()
    });
    fixture.publish_echo(doubled.await);
    let streamed = Request::post("/function/echo").header("te", "trailers");
    for request in [Request::get("/function/echo"), streamed] {
        let answer = send_and_collect(fixture.public, request.body(full_body("")).unwrap()).await;
        let origins: Vec<_> = answer
            .headers
            .get_all("x-openfaas-internal")
            .iter()
            .collect();
        assert_eq!(origins, ["of-watchdog"], "{answer:?}");
    }
}

/// The watchdog has removed the fields that its tenant set; the call id is the gateway's own.
#[tokio::test]
async fn functions_cannot_change_the_id_of_a_call() {
    let fixture = TestGateway::start();
    let forging = start_instance(async |_| {
        let mut response = Response::new(full_body("x"));
        response
            .headers_mut()
            .insert("x-call-id", "forged".parse().unwrap());
        response
    });
    fixture.publish_echo(forging.await);
    let request = Request::get("/function/echo").header("x-call-id", "mine");
    let answer = send_and_collect(fixture.public, request.body(full_body("")).unwrap()).await;
    assert_eq!(answer.header("x-call-id"), "mine");
}

#[tokio::test]
async fn a_function_learns_which_function_calls() {
    let fixture = TestGateway::start();
    let frontend = SocketAddr::from(([127, 0, 0, 2], 9));
    let calls = vec!["cart".parse().unwrap()];
    let policy = FunctionPolicy {
        calls,
        ..FunctionPolicy::default()
    };
    let mut caller = fixture::function_route("frontend", policy, &[]);
    caller.instances = vec![fixture::instance_entry(frontend, InstanceState::Ready)];
    let mirror = start_mirror().await;
    let callee = fixture::function_route("cart", FunctionPolicy::default(), &[mirror]);
    let functions = vec![caller, callee];
    fixture.gateway.publish(&RoutingSnapshot {
        version: 1,
        nodes: Default::default(),
        functions: functions.into_iter().collect(),
    });

    let mut stream = connect_from([127, 0, 0, 2], fixture.internal).await;
    let request = "GET /function/cart HTTP/1.1\r\nhost: gateway\r\nx-nearpath-caller: admin\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    nearpath_testkit::within(stream.read_to_string(&mut answer))
        .await
        .unwrap();
    assert!(
        answer.contains("\nx-nearpath-caller: frontend.openfaas-fn\n"),
        "{answer}"
    );
    assert!(!answer.contains("admin"), "{answer}");
}

/// What follows an unrequested 101 would be the response to the next request on the connection.
#[tokio::test]
async fn an_unrequested_101_is_502_and_ends_its_connection() {
    let fixture = TestGateway::start();
    let (addr, mut connections) = start_scripted(async |mut stream| {
        read_head(&mut stream).await;
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged";
        let _ = stream.write_all(answer).await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    fixture.publish_echo(addr);
    for _ in 0..2 {
        let answer = fixture.send_get("/function/echo").await;
        assert_eq!(answer.status, 502, "{}", answer.body);
        assert!(!answer.body.contains("forged"), "{}", answer.body);
        assert!(connections.recv().await.is_some(), "a connection for each");
    }
}

#[tokio::test]
async fn a_body_of_unknown_length_reaches_the_function_with_any_method() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    for method in ["GET", "HEAD", "DELETE", "OPTIONS", "POST"] {
        let head = format!(
            "{method} /function/echo HTTP/1.1\r\nhost: h\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
        );
        let answer = send_raw(fixture.public, head.as_bytes()).await;
        // The mirror's response to HEAD has no body, only a length.
        let is_whole = answer.ends_with("\n\nhello") || method == "HEAD";
        assert!(
            answer.starts_with("HTTP/1.1 200") && is_whole,
            "{method}: {answer}"
        );
    }
    let mut client = connect_http2(fixture.public).await;
    for method in [Method::GET, Method::POST] {
        let pieces = futures_util::stream::iter([Ok(Frame::data(Bytes::from_static(b"hello")))]);
        let request = Request::builder()
            .method(method)
            .uri("http://h/function/echo")
            .body(StreamBody::new(pieces).boxed_unsync())
            .unwrap();
        let answer = collect_response(client.send_request(request).await.unwrap()).await;
        assert!(answer.body.ends_with("\n\nhello"), "{}", answer.body);
    }
}
