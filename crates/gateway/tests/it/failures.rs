//! Instances that die, refuse, stall or send invalid responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::{Request, Response};
use nearpath_testkit::{eventually, free_addr, within};
use nearpath_types::FunctionPolicy;
use nearpath_wire::not_run_header::NOT_RUN;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc::unbounded_channel;

use crate::fixture::{
    self, TestGateway, full_body, millis, read_head, send_and_collect, start_blocked_instance,
    start_instance, start_mirror, start_scripted,
};

#[tokio::test]
async fn an_instance_that_dies_is_a_502_and_nothing_is_repeated() {
    let fixture = TestGateway::start();
    let (addr, mut connections) = start_scripted(async |mut stream| {
        read_head(&mut stream).await;
    })
    .await;
    fixture.publish_functions(&[("echo", FunctionPolicy::default(), &[addr, addr])]);
    let answer = fixture.send_get("/function/echo").await;
    assert_eq!((answer.status, answer.reason()), (502, "instance_died"));
    assert!(answer.headers.get("retry-after").is_none());
    connections.recv().await.unwrap();
    assert!(
        connections.try_recv().is_err(),
        "the request may have run: it is not sent again"
    );
}

#[tokio::test]
async fn an_unsent_request_goes_to_another_instance() {
    let fixture = TestGateway::start();
    fixture.publish_functions(&[(
        "echo",
        FunctionPolicy::default(),
        &[free_addr(), start_mirror().await],
    )]);
    for _ in 0..20 {
        let request = Request::post("/function/echo")
            .body(full_body("body"))
            .unwrap();
        let answer = send_and_collect(fixture.public, request).await;
        assert_eq!(answer.status, 200);
        assert!(answer.body.ends_with("\n\nbody"));
    }
}

#[tokio::test]
async fn an_unreachable_function_is_tried_again_after_the_next_snapshot() {
    let fixture = TestGateway::start();
    fixture.publish_echo(free_addr());
    let addr = fixture.public;
    let request = Request::get("/function/echo").body(full_body("")).unwrap();
    let waiting = tokio::spawn(async move { send_and_collect(addr, request).await });
    let inflight = r#"nearpath_inflight{function_name="echo.openfaas-fn"} 1"#;
    eventually(inflight, async || {
        fixture.encode_metrics().contains(inflight)
    })
    .await;
    fixture.publish_echo(start_mirror().await);
    assert_eq!(within(waiting).await.unwrap().status, 200);
}

#[tokio::test]
async fn an_unreachable_function_is_refused_after_the_cold_timeout() {
    let fixture = TestGateway::start();
    fixture.publish_functions(&[(
        "echo",
        FunctionPolicy {
            cold_timeout: millis(60),
            ..FunctionPolicy::default()
        },
        &[free_addr()],
    )]);
    let answer = fixture.send_get("/function/echo").await;
    assert_eq!((answer.status, answer.reason()), (502, "connect_failed"));
}

#[tokio::test]
async fn a_closed_pooled_connection_is_replaced() {
    let (sender, mut closed) = unbounded_channel();
    let (addr, _connections) = start_scripted(move |mut stream| {
        let sender = sender.clone();
        async move {
            read_head(&mut stream).await;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                .await
                .unwrap();
            stream.shutdown().await.unwrap();
            // The gateway has seen the close when it closes, too.
            let _ = stream.read(&mut [0]).await;
            sender.send(()).unwrap();
        }
    })
    .await;
    let fixture = TestGateway::start();
    fixture.publish_echo(addr);
    for _ in 0..10 {
        assert_eq!(fixture.send_get("/function/echo").await.status, 200);
        within(closed.recv()).await.unwrap();
    }
}

#[tokio::test]
async fn an_invalid_response_is_a_502() {
    let (addr, _connections) = start_scripted(async |mut stream| {
        read_head(&mut stream).await;
        stream.write_all(b"220 smtp ready\r\n\r\n").await.unwrap();
    })
    .await;
    let fixture = TestGateway::start();
    fixture.publish_echo(addr);
    let answer = fixture.send_get("/function/echo").await;
    assert_eq!((answer.status, answer.reason()), (502, "instance_died"));
    assert!(answer.body.contains("invalid HTTP"), "{}", answer.body);
}

/// Starts an instance that reads requests and never answers.
async fn start_silent_instance() -> std::net::SocketAddr {
    start_instance(async |_| std::future::pending::<Response<_>>().await).await
}

#[tokio::test]
async fn each_timeout_has_its_own_reason() {
    let default = FunctionPolicy::default;
    for (policy, reason, setting) in [
        (
            FunctionPolicy {
                first_byte_timeout: millis(50),
                ..default()
            },
            "first_byte_timeout",
            "nearpath.io/first-byte-timeout",
        ),
        (
            FunctionPolicy {
                total_timeout: millis(50),
                ..default()
            },
            "total_timeout",
            "nearpath.io/total-timeout",
        ),
    ] {
        let fixture = TestGateway::start();
        fixture.publish_functions(&[("echo", policy, &[start_silent_instance().await])]);
        let answer = fixture.send_get("/function/echo").await;
        assert_eq!((answer.status, answer.reason()), (504, reason));
        assert!(answer.body.contains(setting), "{}", answer.body);
    }
}

#[tokio::test]
async fn the_callers_own_timeout_is_reported() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_silent_instance().await);
    let request = Request::get("/function/echo")
        .header("x-timeout", "50ms")
        .body(full_body(""))
        .unwrap();
    let answer = send_and_collect(fixture.public, request).await;
    assert_eq!((answer.status, answer.reason()), (504, "total_timeout"));
    assert!(answer.body.contains("X-Timeout"), "{}", answer.body);
}

#[tokio::test]
async fn a_response_that_falls_silent_or_breaks_off_is_cut() {
    for (closes, reason) in [(false, "idle_timeout"), (true, "response_truncated")] {
        let (addr, _connections) = start_scripted(move |mut stream| async move {
            read_head(&mut stream).await;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc")
                .await
                .unwrap();
            if !closes {
                std::future::pending::<()>().await;
            }
        })
        .await;
        let fixture = TestGateway::start();
        fixture.publish_functions(&[(
            "echo",
            FunctionPolicy {
                idle_timeout: millis(100),
                ..FunctionPolicy::default()
            },
            &[addr],
        )]);
        let answer = fixture::send_raw(
            fixture.public,
            b"GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n",
        )
        .await;
        assert!(closes || answer.ends_with("\r\n\r\nabc"), "{answer}");
        eventually("it is recorded", async || {
            fixture.log.parse_lines().len() == 1
        })
        .await;
        assert_eq!(fixture.log.parse_lines()[0]["reason"], reason);
    }
}

#[tokio::test]
async fn a_stalled_request_body_is_a_408() {
    let fixture = TestGateway::with_settings(nearpath_gateway::GatewaySettings {
        body_idle_timeout: millis(50),
        ..Default::default()
    });
    fixture.publish_echo(start_mirror().await);
    let request = b"POST /function/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nabc";
    let answer = fixture::send_raw(fixture.public, request).await;
    assert!(
        answer.starts_with("HTTP/1.1 408 ") && answer.contains("slow_request"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_dead_instance_beside_a_full_one_does_not_lose_the_request() {
    let busy = start_blocked_instance().await;
    let fixture = TestGateway::start();
    let policy = FunctionPolicy {
        max_inflight: Some(1),
        ..FunctionPolicy::default()
    };
    fixture.publish_functions(&[("echo", policy, &[free_addr(), busy.addr])]);
    let addr = fixture.public;
    let request = || Request::get("/function/echo").body(full_body("")).unwrap();
    let both = [
        tokio::spawn(send_and_collect(addr, request())),
        tokio::spawn(send_and_collect(addr, request())),
    ];
    let inflight = r#"nearpath_inflight{function_name="echo.openfaas-fn"} 2"#;
    eventually(inflight, async || {
        fixture.encode_metrics().contains(inflight)
    })
    .await;
    busy.permits.add_permits(2);
    for one in both {
        assert_eq!(within(one).await.unwrap().status, 200);
    }
}

/// Starts an instance that answers like a watchdog without a tenant while `is_refusing`; `mark`
/// adds the platform's field.
async fn start_refusing_instance(
    is_refusing: Arc<AtomicBool>,
    mark: bool,
) -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    let addr = start_instance(move |_| {
        let mut answer = Response::new(full_body("well"));
        if is_refusing.load(Ordering::SeqCst) {
            count.fetch_add(1, Ordering::SeqCst);
            answer = Response::new(full_body(
                "watchdog: connect_failed: the tenant's server cannot be reached\n",
            ));
            *answer.status_mut() = http::StatusCode::BAD_GATEWAY;
            answer
                .headers_mut()
                .insert("x-openfaas-internal", "of-watchdog".parse().unwrap());
            answer
                .headers_mut()
                .insert("x-nearpath-reason", "connect_failed".parse().unwrap());
            if mark {
                answer
                    .headers_mut()
                    .insert(NOT_RUN, "connect_failed".parse().unwrap());
            }
        }
        async move { answer }
    });
    (addr.await, refused)
}

fn post_request(body: &'static str) -> Request<fixture::TestBody> {
    Request::post("/function/echo")
        .body(full_body(body))
        .unwrap()
}

#[tokio::test]
async fn a_request_that_an_instance_has_not_run_goes_to_another_one() {
    let fixture = TestGateway::start();
    let (refusing, refused) = start_refusing_instance(Arc::new(AtomicBool::new(true)), true).await;
    fixture.publish_functions(&[(
        "echo",
        FunctionPolicy::default(),
        &[refusing, start_mirror().await],
    )]);
    for _ in 0..20 {
        let answer = send_and_collect(
            fixture.public,
            Request::get("/function/echo").body(full_body("")).unwrap(),
        )
        .await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    for _ in 0..20 {
        let answer = send_and_collect(fixture.public, post_request("body")).await;
        assert!(
            answer.status == 200 && answer.body.ends_with("\n\nbody"),
            "{answer:?}"
        );
    }
    assert!(
        refused.load(Ordering::SeqCst) > 1,
        "the control: it was asked"
    );
}

/// Copying every request would be too expensive, so a connection that has served before may
/// forward one refusal.
#[tokio::test]
async fn an_instance_that_starts_refusing_loses_one_call_at_most() {
    let fixture = TestGateway::with_settings(nearpath_gateway::GatewaySettings::default());
    let is_refusing = Arc::new(AtomicBool::new(false));
    let (addr, _) = start_refusing_instance(is_refusing.clone(), true).await;
    fixture.publish_functions(&[(
        "echo",
        FunctionPolicy::default(),
        &[addr, start_mirror().await],
    )]);
    let mut sender = fixture::connect_http2(fixture.public).await;
    let ask = async |sender: &mut hyper::client::conn::http2::SendRequest<fixture::TestBody>| {
        let request = Request::post("http://shop.example/function/echo")
            .body(full_body("body"))
            .unwrap();
        fixture::collect_response(within(sender.send_request(request)).await.unwrap()).await
    };
    for _ in 0..20 {
        assert_eq!(ask(&mut sender).await.status, 200);
    }
    is_refusing.store(true, Ordering::SeqCst);
    let mut passed_on = 0;
    for _ in 0..20 {
        let answer = ask(&mut sender).await;
        assert!(
            answer.headers.get(NOT_RUN).is_none(),
            "callers do not see the mark"
        );
        passed_on += usize::from(answer.status != 200);
        assert!(
            answer.status == 200 || answer.reason() == "connect_failed",
            "{answer:?}"
        );
    }
    assert!(passed_on <= 1, "{passed_on}");
}

#[tokio::test]
async fn an_instance_that_refuses_everything_is_reported_with_its_own_text() {
    let fixture = TestGateway::start();
    let (refusing, _) = start_refusing_instance(Arc::new(AtomicBool::new(true)), true).await;
    fixture.publish_functions(&[(
        "echo",
        FunctionPolicy {
            cold_timeout: millis(60),
            ..FunctionPolicy::default()
        },
        &[refusing],
    )]);
    let answer = fixture.send_get("/function/echo").await;
    assert_eq!((answer.status, answer.reason()), (502, "connect_failed"));
    assert!(
        answer.body.contains("no instance of echo") && answer.body.contains("the tenant's server"),
        "{answer:?}"
    );
}

/// A function may forward a refusal that it received; its own call has run.
#[tokio::test]
async fn a_refusal_that_a_tenant_passes_on_is_its_answer() {
    let fixture = TestGateway::start();
    let (tenant, asked) = start_refusing_instance(Arc::new(AtomicBool::new(true)), false).await;
    fixture.publish_functions(&[(
        "echo",
        FunctionPolicy::default(),
        &[tenant, start_mirror().await],
    )]);
    let mut seen = 0;
    for _ in 0..20 {
        seen += usize::from(fixture.send_get("/function/echo").await.status == 502);
    }
    assert_eq!(
        seen,
        asked.load(Ordering::SeqCst),
        "each call is answered by whom it reached first"
    );
    assert!(seen > 0);
}
