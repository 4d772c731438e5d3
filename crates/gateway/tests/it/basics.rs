//! Paths, methods, headers.

use http::Request;
use nearpath_types::{FunctionPolicy, InstanceState, RoutingSnapshot};

use crate::fixture::{
    self, TestGateway, full_body, millis, send_and_collect, send_raw, start_mirror,
};

#[tokio::test]
async fn the_function_sees_its_own_path_and_any_method() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    for (path, seen) in [
        ("/function/echo", "/"),
        ("/function/echo/", "/"),
        ("/function/echo.openfaas-fn", "/"),
        ("/function/echo/a/b?c=d", "/a/b?c=d"),
        ("/function/echo?c=d", "/?c=d"),
    ] {
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"] {
            let request = Request::builder()
                .method(method)
                .uri(path)
                .body(full_body(""))
                .unwrap();
            let answer = send_and_collect(fixture.public, request).await;
            assert_eq!(
                answer.body.lines().next(),
                Some(&*format!("{method} {seen}")),
                "{path}"
            );
        }
    }
}

#[tokio::test]
async fn headers_are_added_kept_and_removed() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let request = Request::post("/function/echo")
        .header("x-call-id", "mine")
        .header("x-forwarded-for", "10.1.1.1")
        .header("traceparent", "00-1-2-01")
        .header("connection", "x-secret")
        .header("x-secret", "1")
        .header("te", "trailers, gzip")
        .body(full_body("hello"))
        .unwrap();
    let answer = send_and_collect(fixture.public, request).await;
    for line in [
        "x-call-id: mine",
        "x-forwarded-for: 10.1.1.1, 127.0.0.1",
        "x-forwarded-host: shop.example",
        "host: shop.example",
        "x-forwarded-proto: http",
        "x-timeout: 60s",
        "traceparent: 00-1-2-01",
        "te: trailers",
        "content-length: 5",
    ] {
        assert!(
            answer.body.contains(&format!("{line}\n")),
            "{line} in {}",
            answer.body
        );
    }
    assert!(!answer.body.contains("x-secret"), "{}", answer.body);
    assert!(answer.body.contains("x-start-time: ") && answer.body.ends_with("\n\nhello"));
    assert_eq!(answer.header("x-call-id"), "mine");
    assert_eq!(answer.header("x-served-by"), "nearpath");
    assert!(answer.header("x-duration-seconds").parse::<f64>().unwrap() > 0.0);
}

#[tokio::test]
async fn a_call_id_is_made_and_is_a_uuid() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let answer = fixture.send_get("/function/echo").await;
    let id = answer.header("x-call-id");
    assert!(
        id.len() == 36 && answer.body.contains(&format!("x-call-id: {id}\n")),
        "{id}"
    );
}

#[tokio::test]
async fn the_callers_deadline_is_passed_on() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let request_with = |timeout: &str| {
        Request::get("/function/echo")
            .header("x-timeout", timeout)
            .body(full_body(""))
            .unwrap()
    };
    let timeout_of = |body: &str| {
        body.lines()
            .find_map(|line| line.strip_prefix("x-timeout: "))
            .unwrap()
            .to_owned()
    };
    let left = nearpath_types::duration::parse_duration(&timeout_of(
        &send_and_collect(fixture.public, request_with("5s"))
            .await
            .body,
    ))
    .unwrap();
    assert!(left <= millis(5_000) && left > millis(1_000), "{left:?}");
    assert_eq!(
        timeout_of(
            &send_and_collect(fixture.public, request_with("1h"))
                .await
                .body
        ),
        "60s",
        "it can only shorten"
    );
    let refused = send_and_collect(fixture.public, request_with("soon")).await;
    assert_eq!((refused.status, refused.reason()), (400, "bad_request"));
}

#[tokio::test]
async fn paths_outside_functions_are_answered() {
    let fixture = TestGateway::start();
    assert_eq!(
        (
            fixture.send_get("/healthz").await.status,
            fixture.send_get("/healthz").await.body.as_str()
        ),
        (200, "OK\n")
    );
    for path in ["/system/functions", "/ui/", "/", "/async-function/echo"] {
        let answer = fixture.send_get(path).await;
        assert_eq!(answer.body, format!("admin {path}"));
        assert_eq!(
            answer.header("x-source"),
            "127.0.0.1",
            "logins are limited by it"
        );
    }
    let missing = fixture.send_get("/function/missing").await;
    assert_eq!(
        (
            missing.status,
            missing.reason(),
            missing.header("x-openfaas-internal")
        ),
        (404, "no_function", "gateway")
    );
    assert!(
        missing.body.contains("missing.openfaas-fn"),
        "{}",
        missing.body
    );
    assert_eq!(fixture.send_get("/function/Echo_1").await.status, 400);
    assert_eq!(fixture.send_get("/function/%65cho").await.status, 400);
    assert_eq!(fixture.send_get("/elsewhere").await.status, 404);
    let post = Request::post("/healthz").body(full_body("")).unwrap();
    let refused = send_and_collect(fixture.public, post).await;
    assert_eq!(
        (refused.status, refused.header("allow")),
        (405, "GET, HEAD")
    );
}

#[tokio::test]
async fn errors_are_json_for_those_who_ask() {
    let fixture = TestGateway::start();
    let request = Request::get("/function/missing")
        .header("accept", "application/json")
        .body(full_body(""))
        .unwrap();
    let answer = send_and_collect(fixture.public, request).await;
    let error: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(error["reason"], "no_function");
    assert_eq!(error["component"], "gateway");
}

#[tokio::test]
async fn connect_is_refused() {
    let fixture = TestGateway::start();
    let answer = send_raw(
        fixture.public,
        b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\nconnection: close\r\n\r\n",
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    assert!(answer.contains("\r\nallow: GET, HEAD, POST"), "{answer}");
}

#[tokio::test]
async fn http_1_0_and_head_are_served() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let answer = send_raw(fixture.public, b"GET /function/echo HTTP/1.0\r\n\r\n").await;
    assert!(
        answer.starts_with("HTTP/1.0 200 ") && answer.contains("host: echo.openfaas-fn"),
        "{answer}"
    );
    let answer = send_raw(
        fixture.public,
        b"HEAD /function/echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
    )
    .await;
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"),
        "{answer}"
    );
    assert!(answer.contains("content-length: "), "{answer}");
}

#[tokio::test]
async fn expect_100_continue_is_answered() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let request = b"POST /function/echo HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\nconnection: close\r\n\r\n";
    let mut stream = tokio::net::TcpStream::connect(fixture.public)
        .await
        .unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, request)
        .await
        .unwrap();
    let head = nearpath_testkit::within(fixture::read_head(&mut stream)).await;
    assert!(head.starts_with("HTTP/1.1 100 "), "{head}");
    tokio::io::AsyncWriteExt::write_all(&mut stream, b"ok")
        .await
        .unwrap();
    let mut rest = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut rest)
        .await
        .unwrap();
    assert!(
        rest.starts_with("HTTP/1.1 200 ") && rest.ends_with("\n\nok"),
        "{rest}"
    );
}

#[tokio::test]
async fn large_bodies_are_bounded_announced_or_not() {
    let fixture = TestGateway::start();
    fixture.publish_functions(&[(
        "echo",
        FunctionPolicy {
            max_body: Some(10),
            ..FunctionPolicy::default()
        },
        &[start_mirror().await],
    )]);
    let post = |body: &str| {
        let request =
            format!("POST /function/echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{body}");
        let addr = fixture.public;
        async move { send_raw(addr, request.as_bytes()).await }
    };
    assert!(
        post("content-length: 10\r\n\r\n0123456789")
            .await
            .starts_with("HTTP/1.1 200 ")
    );
    let announced = post("content-length: 11\r\n\r\n01234567890").await;
    assert!(
        announced.starts_with("HTTP/1.1 413 ") && announced.contains("nearpath.io/max-body"),
        "{announced}"
    );
    let chunked = post("transfer-encoding: chunked\r\n\r\nb\r\n01234567890\r\n0\r\n\r\n").await;
    assert!(chunked.starts_with("HTTP/1.1 413 "), "{chunked}");
}

#[tokio::test]
async fn load_spreads_over_instances_on_one_connection() {
    let fixture = TestGateway::start();
    let (a, b) = (start_mirror().await, start_mirror().await);
    fixture.publish_functions(&[("echo", FunctionPolicy::default(), &[a, b])]);
    for _ in 0..50 {
        assert_eq!(fixture.send_get("/function/echo").await.status, 200);
    }
    let used: std::collections::BTreeSet<_> = fixture
        .log
        .parse_lines()
        .iter()
        .map(|line| line["instance"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(used.len(), 2, "{used:?}");
}

#[tokio::test]
async fn a_withdrawn_instance_gets_nothing_new() {
    let fixture = TestGateway::start();
    let (a, b) = (start_mirror().await, start_mirror().await);
    fixture.publish_functions(&[("echo", FunctionPolicy::default(), &[a, b])]);
    fixture.send_get("/function/echo").await;
    let mut entry = fixture::function_route("echo", FunctionPolicy::default(), &[a, b]);
    entry.instances[0].state = InstanceState::Draining;
    fixture.gateway.publish(&RoutingSnapshot {
        version: 2,
        nodes: Default::default(),
        functions: [entry].into_iter().collect(),
    });
    let before = fixture.log.parse_lines().len();
    for _ in 0..30 {
        fixture.send_get("/function/echo").await;
    }
    nearpath_testkit::eventually("all requests are logged", async || {
        fixture.log.parse_lines().len() >= before + 30
    })
    .await;
    let late = fixture.log.parse_lines().split_off(before + 1);
    let b = format!("i{:x}", b.port());
    assert!(
        late.iter().all(|line| line["instance"] == b.as_str()),
        "{late:?}"
    );
}

#[tokio::test]
async fn http_2_without_tls() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let mut client = fixture::connect_http2(fixture.public).await;
    let request = Request::post(format!(
        "http://shop.example:{}/function/echo/x",
        fixture.public.port()
    ));
    let response = client
        .send_request(request.body(full_body("hi")).unwrap())
        .await
        .unwrap();
    let answer = fixture::collect_response(response).await;
    assert!(
        answer.body.starts_with("POST /x\n") && answer.body.ends_with("\n\nhi"),
        "{}",
        answer.body
    );
    assert!(
        answer.body.contains("host: shop.example"),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn connections_are_kept_on_both_sides() {
    let (addr, mut connections) = fixture::start_scripted(async |mut stream| {
        while !fixture::read_head(&mut stream).await.is_empty() {
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            tokio::io::AsyncWriteExt::write_all(&mut stream, answer)
                .await
                .unwrap();
        }
    })
    .await;
    let fixture = TestGateway::start();
    fixture.publish_echo(addr);
    let io = hyper_util::rt::TokioIo::new(
        tokio::net::TcpStream::connect(fixture.public)
            .await
            .unwrap(),
    );
    let (mut client, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..20 {
        client.ready().await.unwrap();
        let request = Request::get("/function/echo")
            .header("host", "a")
            .body(full_body(""))
            .unwrap();
        let response = nearpath_testkit::within(client.send_request(request))
            .await
            .unwrap();
        assert_eq!(fixture::collect_response(response).await.body, "ok");
    }
    connections.recv().await.unwrap();
    assert!(
        connections.try_recv().is_err(),
        "20 requests need one connection to the instance"
    );
}
