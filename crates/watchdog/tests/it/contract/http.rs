//! Mode `http`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use nearpath_testkit::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::contract::support::{
    AnyError, WatchdogProcess, command_with_oom_counter, frames, full, send, start_tenant, text,
};

/// Responds with a description of the request: method, target, headers, body.
pub(crate) async fn describe_request(
    request: Request<Incoming>,
) -> Response<http_body_util::Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let mut text = format!("{} {} {:?}\n", parts.method, parts.uri, parts.version);
    for (name, value) in &parts.headers {
        text += &format!("{name}: {}\n", value.to_str().unwrap());
    }
    let body = body.collect().await.unwrap().to_bytes();
    text += std::str::from_utf8(&body).unwrap();
    Response::builder()
        .header("keep-alive", "timeout=5")
        .header("x-own", "1")
        .body(full(&text))
        .unwrap()
}

async fn next_data(body: &mut Incoming) -> Bytes {
    within(body.frame())
        .await
        .unwrap()
        .unwrap()
        .into_data()
        .unwrap()
}

#[tokio::test]
async fn requests_and_answers_pass() {
    let watchdog = WatchdogProcess::in_http_mode(start_tenant(describe_request).await, &[]);
    let request = Request::patch("/a/b?c=d")
        .header("x-call-id", "7")
        .header("connection", "x-hop")
        .header("x-hop", "1");
    let response = send(watchdog.addr, request.body(full("body")).unwrap())
        .await
        .unwrap();
    assert_eq!(response.headers()["x-own"], "1");
    assert!(!response.headers().contains_key("keep-alive"));
    let took: f64 = response.headers()["x-duration-seconds"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(took > 0.0);
    let (status, said) = text(response).await;
    assert_eq!(status, 200);
    assert!(
        said.starts_with("PATCH /a/b?c=d HTTP/1.1\n") && said.ends_with("\nbody"),
        "{said}"
    );
    assert!(
        said.contains("x-call-id: 7\n") && said.contains("host: function\n"),
        "{said}"
    );
    assert!(
        said.contains("content-length: 4\n") && !said.contains("x-hop"),
        "{said}"
    );
}

#[tokio::test]
async fn http2_comes_in_and_http1_goes_on() {
    let watchdog = WatchdogProcess::in_http_mode(start_tenant(describe_request).await, &[]);
    let request = Request::post("/x")
        .version(Version::HTTP_2)
        .body(full("b"))
        .unwrap();
    let (_, said) = text(send(watchdog.addr, request).await.unwrap()).await;
    assert!(
        said.starts_with("POST /x HTTP/1.1\n")
            && said.contains(&format!("host: {}\n", watchdog.addr)),
        "{said}"
    );
}

#[tokio::test]
async fn head_and_answers_without_a_body() {
    let answer = async |request: Request<Incoming>| {
        let status = request
            .uri()
            .path()
            .trim_start_matches('/')
            .parse::<u16>()
            .unwrap();
        let head = Response::builder()
            .status(status)
            .header("x-method", request.method().as_str());
        head.body(full(if status == 200 { "hello" } else { "" }))
            .unwrap()
    };
    let watchdog = WatchdogProcess::in_http_mode(start_tenant(answer).await, &[]);
    let response = send(watchdog.addr, Request::head("/200").body(full("")).unwrap())
        .await
        .unwrap();
    assert_eq!(
        (
            &response.headers()["content-length"],
            &response.headers()["x-method"]
        ),
        (&"5".parse().unwrap(), &"HEAD".parse().unwrap())
    );
    assert_eq!(text(response).await, (200, String::new()));
    for status in [204, 304] {
        assert_eq!(
            watchdog.get(&format!("/{status}")).await,
            (status, String::new())
        );
    }
}

#[tokio::test]
async fn upstream_protocol_h2c() {
    let watchdog = WatchdogProcess::in_http_mode(
        start_tenant(describe_request).await,
        &[("upstream_protocol", "h2c")],
    );
    let (_, said) = watchdog.post("/x?y", "b").await;
    assert!(
        said.starts_with("POST http://function/x?y HTTP/2.0\n"),
        "{said}"
    );
}

#[tokio::test]
async fn upstream_url_may_have_a_path() {
    let url = format!(
        "http://localhost:{}/api/",
        start_tenant(describe_request).await.port()
    );
    let watchdog = WatchdogProcess::start(&[
        ("mode", "http"),
        ("fprocess", "sleep 1000"),
        ("http_upstream_url", &url),
    ]);
    assert!(
        watchdog
            .get("/x?y=1")
            .await
            .1
            .starts_with("GET /api/x?y=1 ")
    );
}

#[tokio::test]
async fn content_type_is_the_answers_else_the_requests_else_text() {
    let answer = async |request: Request<Incoming>| {
        let mut response = Response::new(full("x"));
        if request.uri().path() == "/own" {
            response
                .headers_mut()
                .insert("content-type", "a/own".parse().unwrap());
        }
        response
    };
    let watchdog = WatchdogProcess::in_http_mode(start_tenant(answer).await, &[]);
    let ask = async |path: &str, kind: Option<&str>| {
        let request = kind.into_iter().fold(Request::get(path), |request, kind| {
            request.header("content-type", kind)
        });
        let response = send(watchdog.addr, request.body(full("")).unwrap())
            .await
            .unwrap();
        response.headers()["content-type"]
            .to_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(ask("/own", Some("a/request")).await, "a/own");
    assert_eq!(ask("/", Some("a/request")).await, "a/request");
    assert_eq!(ask("/", None).await, "text/plain");
}

#[tokio::test]
async fn events_arrive_before_the_answer_ends() {
    let (sender, body) = frames();
    let body = Arc::new(std::sync::Mutex::new(Some(body)));
    let answer = move |_| std::future::ready(Response::new(body.lock().unwrap().take().unwrap()));
    let watchdog = WatchdogProcess::in_http_mode(start_tenant(answer).await, &[]);
    sender
        .send(Ok(Frame::data("data: 1\n\n".into())))
        .await
        .unwrap();
    let request = Request::get("/")
        .header("accept", "text/event-stream")
        .body(full(""))
        .unwrap();
    let mut body = send(watchdog.addr, request).await.unwrap().into_body();
    assert_eq!(next_data(&mut body).await, "data: 1\n\n");
    sender
        .send(Ok(Frame::data("data: 2\n\n".into())))
        .await
        .unwrap();
    assert_eq!(next_data(&mut body).await, "data: 2\n\n");
    drop(sender);
    assert!(within(body.frame()).await.is_none());
}

#[tokio::test]
async fn uploads_arrive_before_the_request_ends() {
    let (got, mut gotten) = mpsc::channel(4);
    let answer = move |request: Request<Incoming>| {
        let got = got.clone();
        async move {
            let mut body = request.into_body();
            while let Some(Ok(frame)) = body.frame().await {
                got.send(frame.into_data().unwrap()).await.unwrap();
            }
            Response::new(full("all"))
        }
    };
    let watchdog = WatchdogProcess::in_http_mode(start_tenant(answer).await, &[]);
    let (sender, body) = frames();
    let addr = watchdog.addr;
    let call = tokio::spawn(async move {
        send(addr, Request::post("/").body(body).unwrap())
            .await
            .unwrap()
    });
    for part in ["one", "two"] {
        sender.send(Ok(Frame::data(part.into()))).await.unwrap();
        assert_eq!(within(gotten.recv()).await.unwrap(), part);
    }
    drop(sender);
    assert_eq!(text(call.await.unwrap()).await.1, "all");
}

#[tokio::test]
async fn http_buffer_req_body_gives_the_tenant_a_length() {
    let watchdog = WatchdogProcess::in_http_mode(
        start_tenant(describe_request).await,
        &[("http_buffer_req_body", "true"), ("max_body", "10")],
    );
    let (sender, body) = frames();
    sender.send(Ok(Frame::data("12345".into()))).await.unwrap();
    drop(sender);
    let (_, said) = text(
        send(watchdog.addr, Request::post("/").body(body).unwrap())
            .await
            .unwrap(),
    )
    .await;
    assert!(
        said.contains("content-length: 5\n") && !said.contains("transfer-encoding"),
        "{said}"
    );
    assert_eq!(watchdog.post("/", "12345678901").await.0, 413);
}

#[tokio::test]
async fn a_tenant_cannot_speak_for_the_platform() {
    let forge = async |_| {
        let head = Response::builder()
            .header("x-nearpath-reason", "draining")
            .header("x-nearpath-not-run", "draining")
            .header("x-openfaas-internal", "gateway");
        head.body(full("mine")).unwrap()
    };
    let watchdog = WatchdogProcess::in_http_mode(start_tenant(forge).await, &[]);
    let request = Request::get("/").body(full("")).unwrap();
    let response = send(watchdog.addr, request).await.unwrap();
    let platform = |name: &http::HeaderName| {
        name.as_str().starts_with("x-nearpath-") || name.as_str() == "x-openfaas-internal"
    };
    assert!(!response.headers().keys().any(platform), "{response:?}");
}

#[tokio::test]
async fn nor_can_it_in_trailers() {
    let forge = async |_| {
        let mut trailers = HeaderMap::new();
        for name in ["x-openfaas-internal", "x-nearpath-reason", "x-sum"] {
            trailers.insert(name, "mine".parse().unwrap());
        }
        let data = Frame::data(Bytes::from("x"));
        let frames = [data, Frame::trailers(trailers)].map(Ok::<_, AnyError>);
        let body = StreamBody::new(stream::iter(frames));
        let names = "x-openfaas-internal, x-nearpath-reason, x-sum";
        Response::builder()
            .header("trailer", names)
            .body(body)
            .unwrap()
    };
    let watchdog = WatchdogProcess::in_http_mode(start_tenant(forge).await, &[]);
    let request = Request::get("/").header("te", "trailers");
    let request = request.body(full("")).unwrap();
    let body = send(watchdog.addr, request).await.unwrap().into_body();
    let collected = within(body.collect()).await.unwrap();
    let trailers = collected.trailers().unwrap();
    assert_eq!(trailers.len(), 1, "{trailers:?}");
    assert_eq!(trailers["x-sum"], "mine");
}

#[tokio::test]
async fn an_unrequested_101_is_502() {
    let switch = async |_| {
        let head = Response::builder().status(101).header("upgrade", "x");
        head.body(Empty::<Bytes>::new()).unwrap()
    };
    let watchdog = WatchdogProcess::in_http_mode(start_tenant(switch).await, &[]);
    for _ in 0..2 {
        let (status, text) = watchdog.get("/").await;
        assert_eq!(status, 502, "{text}");
    }
}

#[tokio::test]
async fn a_websocket_passes_end_to_end() {
    let answer = async |mut request: Request<Incoming>| {
        assert_eq!(request.headers()["upgrade"], "websocket");
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut io = TokioIo::new(upgrade.await.unwrap());
            let mut bytes = [0; 64];
            while let Ok(n @ 1..) = io.read(&mut bytes).await {
                io.write_all(&bytes[..n]).await.unwrap();
            }
        });
        let head = Response::builder()
            .status(101)
            .header("connection", "upgrade")
            .header("upgrade", "websocket");
        head.body(Empty::<Bytes>::new()).unwrap()
    };
    let watchdog = WatchdogProcess::in_http_mode(
        start_tenant(answer).await,
        &[("max_inflight", "1"), ("exec_timeout", "300ms")],
    );
    let ask = Request::get("/ws")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket");
    let response = send(watchdog.addr, ask.body(full("")).unwrap())
        .await
        .unwrap();
    assert_eq!(
        (response.status(), &response.headers()["upgrade"]),
        (
            StatusCode::SWITCHING_PROTOCOLS,
            &"websocket".parse().unwrap()
        )
    );
    let mut io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    let mut echo = [0; 4];
    for word in [b"ping", b"pong"] {
        io.write_all(word).await.unwrap();
        within(io.read_exact(&mut echo)).await.unwrap();
        assert_eq!(&echo, word);
    }
    assert_eq!(
        watchdog.get("/_/ready").await.0,
        429,
        "an open tunnel is a call in progress"
    );
    io.shutdown().await.unwrap();
    drop(io);
    eventually("the tunnel is over", async || {
        watchdog.get("/_/ready").await.0 == 200
    })
    .await;
}

#[tokio::test]
async fn grpc_goes_on_over_h2c_with_trailers_both_ways() {
    let answer = async |request: Request<Incoming>| {
        assert_eq!(
            (request.version(), &request.headers()["te"]),
            (Version::HTTP_2, &"trailers".parse().unwrap())
        );
        let all = request.into_body().collect().await.unwrap();
        let asked = all.trailers().unwrap()["x-asked"].clone();
        let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), asked)]);
        let frames = [
            Ok::<_, AnyError>(Frame::data(all.to_bytes())),
            Ok(Frame::trailers(trailers)),
        ];
        Response::new(StreamBody::new(stream::iter(frames)))
    };
    let watchdog = WatchdogProcess::in_http_mode(start_tenant(answer).await, &[]);
    let trailers = HeaderMap::from_iter([("x-asked".parse().unwrap(), "0".parse().unwrap())]);
    let frames = [
        Ok::<_, AnyError>(Frame::data(Bytes::from("message"))),
        Ok(Frame::trailers(trailers)),
    ];
    let ask = Request::post("/s/m")
        .version(Version::HTTP_2)
        .header("content-type", "application/grpc");
    let ask = ask
        .header("te", "trailers")
        .body(StreamBody::new(stream::iter(frames)))
        .unwrap();
    let response = send(watchdog.addr, ask).await.unwrap();
    let all = within(response.into_body().collect()).await.unwrap();
    assert_eq!(all.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(all.to_bytes(), "message");
}

#[tokio::test]
async fn trailers_pass_over_http1() {
    let answer = async |_| {
        let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "9".parse().unwrap())]);
        let frames = [
            Ok::<_, AnyError>(Frame::data(Bytes::from("a"))),
            Ok(Frame::trailers(trailers)),
        ];
        Response::builder()
            .header("trailer", "x-sum")
            .body(StreamBody::new(stream::iter(frames)))
            .unwrap()
    };
    let watchdog = WatchdogProcess::in_http_mode(start_tenant(answer).await, &[]);
    let ask = Request::get("/")
        .header("te", "trailers")
        .body(full(""))
        .unwrap();
    let all = within(
        send(watchdog.addr, ask)
            .await
            .unwrap()
            .into_body()
            .collect(),
    )
    .await
    .unwrap();
    assert_eq!(all.trailers().unwrap()["x-sum"], "9");
}

#[tokio::test]
async fn connections_to_the_tenant_are_kept() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                let mut first = true;
                while let Ok(1..) = stream.read(&mut [0; 2048]).await {
                    count.fetch_add(usize::from(std::mem::take(&mut first)), Ordering::SeqCst);
                    let _ = stream
                        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
                        .await;
                    let _ = stream.write_all(b"ok").await;
                }
            });
        }
    });
    let watchdog = WatchdogProcess::in_http_mode(addr, &[]);
    for _ in 0..50 {
        assert_eq!(watchdog.get("/").await, (200, "ok".to_owned()));
    }
    let made = connections.load(Ordering::SeqCst);
    assert!(made < 25, "{made} connections for 50 calls");
}

#[tokio::test]
async fn calls_that_come_before_the_server_is_up_wait_for_it() {
    let addr = nearpath_testkit::free_addr();
    let watchdog = WatchdogProcess::in_http_mode(addr, &[]);
    assert_eq!(watchdog.get("/_/ready").await.0, 503);
    let target = watchdog.addr;
    let call = tokio::spawn(async move {
        send(target, Request::get("/").body(full("")).unwrap())
            .await
            .unwrap()
    });
    eventually("the call is in progress", async || {
        watchdog.get("/_/health").await.0 == 200
    })
    .await;
    let listener = TcpListener::bind(addr).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                if let Ok(1..) = stream.read(&mut [0; 2048]).await {
                    let _ = stream
                        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                        .await;
                }
            });
        }
    });
    assert_eq!(text(call.await.unwrap()).await, (200, "ok".to_owned()));
}

/// The tenant's server closes each connection, and the counter grows with the first.
#[tokio::test]
async fn a_lost_server_is_explained_by_memory_only_to_the_calls_of_that_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let variables = [
        ("mode", "http"),
        ("fprocess", "sleep 1000"),
        ("upstream_url", url.as_str()),
    ];
    let watchdog = WatchdogProcess::spawn(|temp| command_with_oom_counter(temp, &variables));
    let counter = watchdog.temp.path().join("oom");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 1024];
            // Empty for the watchdog's question whether it accepts connections.
            let bytes = stream.read(&mut head).await.unwrap_or(0);
            if head[..bytes].starts_with(b"POST") {
                std::fs::write(&counter, "oom_kill 1\n").unwrap();
            }
        }
    });
    let (status, killed) = watchdog.post("/", "").await;
    assert_eq!(status, 500);
    assert!(killed.contains("needed more memory"), "{killed}");
    let (status, later) = watchdog.get("/").await;
    assert_eq!(status, 500);
    assert!(
        later.contains("broke the connection") && !later.contains("memory"),
        "{later}"
    );
}
