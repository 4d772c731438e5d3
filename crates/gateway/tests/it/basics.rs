//! Paths, methods, headers.

use http::Request;
use nearpath_types::{InstanceState, Policy, Snapshot};

use crate::house::{self, House, ask, full, mirror, ms, raw};

#[tokio::test]
async fn the_function_sees_its_own_path_and_any_method() {
    let house = House::open();
    house.echo(mirror().await);
    for (path, seen) in [
        ("/function/echo", "/"),
        ("/function/echo/", "/"),
        ("/function/echo.openfaas-fn", "/"),
        ("/function/echo/a/b?c=d", "/a/b?c=d"),
        ("/function/echo?c=d", "/?c=d"),
    ] {
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"] {
            let request = Request::builder().method(method).uri(path).body(full("")).unwrap();
            let answer = ask(house.public, request).await;
            assert_eq!(answer.body.lines().next(), Some(&*format!("{method} {seen}")), "{path}");
        }
    }
}

#[tokio::test]
async fn headers_are_added_kept_and_taken() {
    let house = House::open();
    house.echo(mirror().await);
    let request = Request::post("/function/echo")
        .header("x-call-id", "mine")
        .header("x-forwarded-for", "10.1.1.1")
        .header("traceparent", "00-1-2-01")
        .header("connection", "x-secret")
        .header("x-secret", "1")
        .header("te", "trailers, gzip")
        .body(full("hello"))
        .unwrap();
    let answer = ask(house.public, request).await;
    for line in [
        "x-call-id: mine",
        "x-forwarded-for: 10.1.1.1",
        "x-forwarded-host: shop.example",
        "host: shop.example",
        "x-forwarded-proto: http",
        "x-timeout: 60s",
        "traceparent: 00-1-2-01",
        "te: trailers",
        "content-length: 5",
    ] {
        assert!(answer.body.contains(&format!("{line}\n")), "{line} in {}", answer.body);
    }
    assert!(!answer.body.contains("x-secret"), "{}", answer.body);
    assert!(answer.body.contains("x-start-time: ") && answer.body.ends_with("\n\nhello"));
    assert_eq!(answer.header("x-call-id"), "mine");
    assert_eq!(answer.header("x-served-by"), "nearpath");
    assert!(answer.header("x-duration-seconds").parse::<f64>().unwrap() > 0.0);
}

#[tokio::test]
async fn a_call_id_is_made_and_is_a_uuid() {
    let house = House::open();
    house.echo(mirror().await);
    let answer = house.get("/function/echo").await;
    let id = answer.header("x-call-id");
    assert!(id.len() == 36 && answer.body.contains(&format!("x-call-id: {id}\n")), "{id}");
}

#[tokio::test]
async fn the_callers_deadline_goes_on() {
    let house = House::open();
    house.echo(mirror().await);
    let with = |timeout: &str| Request::get("/function/echo").header("x-timeout", timeout).body(full("")).unwrap();
    let told = |body: &str| body.lines().find_map(|line| line.strip_prefix("x-timeout: ")).unwrap().to_owned();
    let left = nearpath_types::duration::parse(&told(&ask(house.public, with("5s")).await.body)).unwrap();
    assert!(left <= ms(5_000) && left > ms(1_000), "{left:?}");
    assert_eq!(told(&ask(house.public, with("1h")).await.body), "60s", "it can only shorten");
    let refused = ask(house.public, with("soon")).await;
    assert_eq!((refused.status, refused.reason()), (400, "bad_request"));
}

#[tokio::test]
async fn other_paths() {
    let house = House::open();
    assert_eq!((house.get("/healthz").await.status, house.get("/healthz").await.body.as_str()), (200, "OK\n"));
    for path in ["/system/functions", "/ui/", "/", "/async-function/echo"] {
        assert_eq!(house.get(path).await.body, format!("admin {path}"));
    }
    let missing = house.get("/function/missing").await;
    assert_eq!(
        (missing.status, missing.reason(), missing.header("x-openfaas-internal")),
        (404, "no_function", "gateway")
    );
    assert!(missing.body.contains("missing.openfaas-fn"), "{}", missing.body);
    assert_eq!(house.get("/function/Echo_1").await.status, 400);
    assert_eq!(house.get("/function/%65cho").await.status, 400);
    assert_eq!(house.get("/elsewhere").await.status, 404);
    let post = Request::post("/healthz").body(full("")).unwrap();
    assert_eq!(ask(house.public, post).await.status, 405);
}

#[tokio::test]
async fn errors_are_json_for_those_who_ask() {
    let house = House::open();
    let request = Request::get("/function/missing").header("accept", "application/json").body(full("")).unwrap();
    let answer = ask(house.public, request).await;
    let error: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(error["reason"], "no_function");
    assert_eq!(error["component"], "gateway");
}

#[tokio::test]
async fn connect_is_refused() {
    let house = House::open();
    let answer = raw(house.public, b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
}

#[tokio::test]
async fn http_1_0_and_head() {
    let house = House::open();
    house.echo(mirror().await);
    let answer = raw(house.public, b"GET /function/echo HTTP/1.0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.0 200 ") && answer.contains("host: echo.openfaas-fn"), "{answer}");
    let answer = raw(house.public, b"HEAD /function/echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"), "{answer}");
    assert!(answer.contains("content-length: "), "{answer}");
}

#[tokio::test]
async fn a_body_that_must_be_asked_for() {
    let house = House::open();
    house.echo(mirror().await);
    let request = b"POST /function/echo HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\nconnection: close\r\n\r\n";
    let mut stream = tokio::net::TcpStream::connect(house.public).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, request).await.unwrap();
    let head = nearpath_testkit::within(house::read_head(&mut stream)).await;
    assert!(head.starts_with("HTTP/1.1 100 "), "{head}");
    tokio::io::AsyncWriteExt::write_all(&mut stream, b"ok").await.unwrap();
    let mut rest = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut rest).await.unwrap();
    assert!(rest.starts_with("HTTP/1.1 200 ") && rest.ends_with("\n\nok"), "{rest}");
}

#[tokio::test]
async fn large_bodies_are_bounded_announced_or_not() {
    let house = House::open();
    house.publish(&[("echo", Policy { max_body: Some(10), ..Policy::default() }, &[mirror().await])]);
    let post = |body: &str| {
        let request = format!("POST /function/echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{body}");
        let at = house.public;
        async move { raw(at, request.as_bytes()).await }
    };
    assert!(post("content-length: 10\r\n\r\n0123456789").await.starts_with("HTTP/1.1 200 "));
    let announced = post("content-length: 11\r\n\r\n01234567890").await;
    assert!(announced.starts_with("HTTP/1.1 413 ") && announced.contains("nearpath.io/max-body"), "{announced}");
    let chunked = post("transfer-encoding: chunked\r\n\r\nb\r\n01234567890\r\n0\r\n\r\n").await;
    assert!(chunked.starts_with("HTTP/1.1 413 "), "{chunked}");
}

#[tokio::test]
async fn load_spreads_over_instances_on_one_connection() {
    let house = House::open();
    let (a, b) = (mirror().await, mirror().await);
    house.publish(&[("echo", Policy::default(), &[a, b])]);
    for _ in 0..50 {
        assert_eq!(house.get("/function/echo").await.status, 200);
    }
    let used: std::collections::BTreeSet<_> =
        house.log.all().iter().map(|line| line["instance"].as_str().unwrap().to_owned()).collect();
    assert_eq!(used.len(), 2, "{used:?}");
}

#[tokio::test]
async fn a_withdrawn_instance_gets_nothing_new() {
    let house = House::open();
    let (a, b) = (mirror().await, mirror().await);
    house.publish(&[("echo", Policy::default(), &[a, b])]);
    house.get("/function/echo").await;
    let mut entry = house::route("echo", Policy::default(), &[a, b]);
    entry.instances[0].state = InstanceState::Draining;
    house.gateway.publish(&Snapshot { version: 2, functions: vec![entry] });
    let before = house.log.all().len();
    for _ in 0..30 {
        house.get("/function/echo").await;
    }
    nearpath_testkit::eventually("all requests are logged", async || house.log.all().len() >= before + 30).await;
    let late = house.log.all().split_off(before + 1);
    let b = format!("i{:x}", b.port());
    assert!(late.iter().all(|line| line["instance"] == b.as_str()), "{late:?}");
}

#[tokio::test]
async fn http_2_without_tls() {
    let house = House::open();
    house.echo(mirror().await);
    let mut client = house::h2(house.public).await;
    let request = Request::post(format!("http://shop.example:{}/function/echo/x", house.public.port()));
    let response = client.send_request(request.body(full("hi")).unwrap()).await.unwrap();
    let answer = house::finish(response).await;
    assert!(answer.body.starts_with("POST /x\n") && answer.body.ends_with("\n\nhi"), "{}", answer.body);
    assert!(answer.body.contains("host: shop.example"), "{}", answer.body);
}

#[tokio::test]
async fn connections_are_kept_on_both_sides() {
    let (at, mut connections) = house::scripted(async |mut stream| {
        while !house::read_head(&mut stream).await.is_empty() {
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await.unwrap();
        }
    })
    .await;
    let house = House::open();
    house.echo(at);
    let io = hyper_util::rt::TokioIo::new(tokio::net::TcpStream::connect(house.public).await.unwrap());
    let (mut client, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..20 {
        client.ready().await.unwrap();
        let request = Request::get("/function/echo").header("host", "a").body(full("")).unwrap();
        let response = nearpath_testkit::within(client.send_request(request)).await.unwrap();
        assert_eq!(house::finish(response).await.body, "ok");
    }
    connections.recv().await.unwrap();
    assert!(connections.try_recv().is_err(), "20 requests need one connection to the instance");
}
