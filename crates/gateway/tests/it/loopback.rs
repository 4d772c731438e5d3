//! Plain requests to a function's own server.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nearpath_kernel::bpf::LoopbackRedirect;
use nearpath_testkit::{need_support, within};
use nearpath_types::policy::LoopbackDelivery;
use nearpath_types::{FunctionPolicy, FunctionServer, RoutingSnapshot};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{TestGateway, full_body, millis, read_head, send_and_collect, start_instance};
use scripted_function::*;

/// Runs each test with all callers, and with both deliveries.
macro_rules! test_all_callers {
    ($($test:ident,)*) => {$(
        mod $test {
            use super::{Caller, LoopbackDelivery, LoopbackRedirect, need_support};

            #[tokio::test]
            async fn on_a_new_connection() {
                super::$test(Caller::NEW).await;
            }

            #[tokio::test]
            async fn on_a_later_connection() {
                super::$test(Caller::LATER).await;
            }

            #[tokio::test]
            async fn on_a_kept_connection() {
                super::$test(Caller::KEPT).await;
            }

            #[tokio::test]
            async fn on_a_new_connection_by_sockmap() {
                need_support!(LoopbackRedirect::check_support());
                super::$test(Caller::NEW.with_delivery(LoopbackDelivery::Sockmap)).await;
            }

            #[tokio::test]
            async fn on_a_later_connection_by_sockmap() {
                need_support!(LoopbackRedirect::check_support());
                super::$test(Caller::LATER.with_delivery(LoopbackDelivery::Sockmap)).await;
            }

            #[tokio::test]
            async fn on_a_kept_connection_by_sockmap() {
                need_support!(LoopbackRedirect::check_support());
                super::$test(Caller::KEPT.with_delivery(LoopbackDelivery::Sockmap)).await;
            }

            #[tokio::test]
            async fn on_a_kept_connection_with_tls() {
                super::$test(Caller::KEPT.with_tls()).await;
            }
        }
    )*};
}

/// Runs each test with both deliveries, and with callers over TLS.
macro_rules! test_all_transports {
    ($($test:ident,)*) => {$(
        mod $test {
            use super::{Caller, LoopbackDelivery, LoopbackRedirect, need_support};

            #[tokio::test]
            async fn over_tcp() {
                super::$test(Caller::NEW).await;
            }

            #[tokio::test]
            async fn by_sockmap() {
                need_support!(LoopbackRedirect::check_support());
                super::$test(Caller::NEW.with_delivery(LoopbackDelivery::Sockmap)).await;
            }

            #[tokio::test]
            async fn from_callers_with_tls() {
                super::$test(Caller::NEW.with_tls()).await;
            }
        }
    )*};
}

/// Runs each test with both deliveries.
macro_rules! test_both_deliveries {
    ($($test:ident,)*) => {$(
        mod $test {
            use super::{LoopbackDelivery, LoopbackRedirect, need_support};

            #[tokio::test]
            async fn over_tcp() {
                super::$test(LoopbackDelivery::Tcp).await;
            }

            #[tokio::test]
            async fn by_sockmap() {
                need_support!(LoopbackRedirect::check_support());
                super::$test(LoopbackDelivery::Sockmap).await;
            }
        }
    )*};
}

mod kept_connections;
mod new_connections;
mod nginx;
mod scripted_function;
mod sockmap;
mod tls_callers;

test_all_callers! {
    a_plain_request_goes_to_the_functions_own_port,
    other_requests_go_to_the_watchdog,
    bodies_of_every_framing_are_whole,
    a_connection_is_used_again_only_after_a_clean_end,
    bytes_after_a_response_never_answer_the_next_request,
    a_busy_connection_leaves_a_simple_server_to_others,
    answers_with_two_meanings_are_errors,
    broken_answers_differ_from_complete_ones,
    the_functions_own_limit_ends_a_call,
    a_caller_that_leaves_ends_the_connection,
    pipelined_requests_are_answered_in_their_order,
}

async fn a_plain_request_goes_to_the_functions_own_port(caller: Caller) {
    let answer = "HTTP/1.1 201 Made\r\nX-Own: 1\r\nContent-Length: 2\r\n\r\nok";
    let function = ScriptedFunction::start(caller, &[(answer, false)]).await;
    let answer = function
        .send("POST /function/echo/a%20b?c=d HTTP/1.1\r\nhost: site\r\nX-Nearpath-Path: ?\r\nx-nearpath-caller: evil\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbody")
        .await;
    assert!(answer.starts_with("HTTP/1.1 201 Created\r\n"), "{answer}");
    for field in [
        "x-own: 1",
        "content-length: 2",
        "content-type: text/plain",
        "x-nearpath-path: loopback; obstacle=no_domain",
        "x-served-by: nearpath",
        "connection: close",
    ] {
        assert!(
            answer.contains(&format!("\r\n{field}\r\n")),
            "{field}: {answer}"
        );
    }
    assert_eq!(body_of(&answer), "ok");
    let request = function.request(0);
    assert!(
        request.starts_with("POST /a%20b?c=d HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(request.ends_with("\r\n\r\nbody"), "{request}");
    for field in [
        "host: site",
        "x-forwarded-host: site",
        "x-forwarded-for: 127.0.0.1",
    ] {
        assert!(
            request.contains(&format!("\r\n{field}\r\n")),
            "{field}: {request}"
        );
    }
    for absent in ["connection", "x-nearpath-caller", "x-nearpath-path"] {
        assert!(!request.contains(absent), "{absent}: {request}");
    }
    let line = function.first_record().await;
    assert_eq!(
        (&line["via"], &line["status"]),
        (&"loopback".into(), &201.into())
    );
}

async fn other_requests_go_to_the_watchdog(caller: Caller) {
    let function = ScriptedFunction::start(caller, &[]).await;
    for request in [
        "GET /function/echo HTTP/1.1\r\nhost: a\r\nx-timeout: 3s\r\nconnection: close\r\n\r\n",
        "GET /function/echo/_/health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        "HEAD /function/echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        "POST /function/echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n0\r\n\r\n",
    ] {
        let answer = function.send(request).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
    assert!(function.requests.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_closed_port_leaves_the_request_to_the_watchdog() {
    let function = ScriptedFunction::start(Caller::NEW, &[]).await;
    let watchdog = start_instance(async |_| http::Response::new(full_body("watchdog"))).await;
    let free = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let server = function.listen_at(free.local_addr().unwrap());
    drop(free);
    publish(
        &function.fixture,
        watchdog,
        &server,
        FunctionPolicy::default(),
    );
    assert_eq!(body_of(&function.get().await), "watchdog");
    assert_eq!(function.socket_count(), 1, "it was tried");
}

async fn bodies_of_every_framing_are_whole(caller: Caller) {
    for (answer, closes, body) in [
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n",
            false,
            "onetwo",
        ),
        (
            "HTTP/1.1 200 OK\r\n\r\nonetwo",
            true,
            "6\r\nonetwo\r\n0\r\n\r\n",
        ),
        (
            "HTTP/1.0 200 OK\r\ncontent-length: 6\r\n\r\nonetwo",
            true,
            "onetwo",
        ),
        (
            "HTTP/1.1 102 Wait\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            false,
            "",
        ),
        ("HTTP/1.1 204 None\r\n\r\n", false, ""),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok",
            false,
            "ok",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            false,
            "ok",
        ),
        (
            "HTTP/1.1 200 OK\r\nconnection: x-own\r\nx-own: 1\r\ncontent-length: 2\r\n\r\nok",
            false,
            "ok",
        ),
    ] {
        let function = ScriptedFunction::start(caller, &[(answer, closes)]).await;
        let got = function.get().await;
        assert_eq!(body_of(&got), body, "{answer:?}: {got}");
        assert!(!got.contains("x-own"), "{got}");
    }
}

async fn a_connection_is_used_again_only_after_a_clean_end(caller: Caller) {
    let whole = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let more = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil";
    let close = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
    let scripts = [
        (whole, false),
        (whole, false),
        (more, true),
        (close, true),
        (whole, false),
    ];
    let function = ScriptedFunction::start(caller, &scripts).await;
    for (number, sockets) in [1, 1, 1, 2, 3].into_iter().enumerate() {
        assert_eq!(body_of(&function.get().await), "ok", "request {number}");
        assert_eq!(function.socket_count(), sockets, "request {number}");
    }
}

async fn bytes_after_a_response_never_answer_the_next_request(caller: Caller) {
    let whole = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let more = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil";
    let function = ScriptedFunction::start(caller, &[(more, false), (whole, false)]).await;
    for _ in 0..2 {
        assert_eq!(body_of(&function.get().await), "ok");
    }
    assert_eq!(function.socket_count(), 2);
}

#[tokio::test]
async fn bytes_on_an_idle_connection_never_answer_the_next_request() {
    let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let late = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil";
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let function = ScriptedFunction::start(Caller::NEW, &[]).await;
    let server = function.listen_at(listener.local_addr().unwrap());
    publish(
        &function.fixture,
        (Ipv4Addr::LOCALHOST, 1).into(),
        &server,
        FunctionPolicy::default(),
    );
    let serving = async {
        let (mut first, _) = listener.accept().await.unwrap();
        read_request(&mut first).await.unwrap();
        first.write_all(whole).await.unwrap();
        first
    };
    let (answer, mut first) = tokio::join!(function.get(), serving);
    assert_eq!(body_of(&answer), "ok");
    first.write_all(late).await.unwrap();
    let serving = async {
        let (mut second, _) = listener.accept().await.unwrap();
        read_request(&mut second).await.unwrap();
        second.write_all(whole).await.unwrap();
    };
    let (answer, ()) = within(async { tokio::join!(function.get(), serving) }).await;
    assert_eq!(body_of(&answer), "ok");
}

async fn a_busy_connection_leaves_a_simple_server_to_others(caller: Caller) {
    let whole = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let function = ScriptedFunction::start(caller, &vec![(whole, false); 200_000]).await;
    assert_eq!(body_of(&function.get().await), "ok");
    // The busy caller leaves no gap: its next request is there when the response is written.
    let busy = async {
        let mut stream = TcpStream::connect(function.fixture.public).await.unwrap();
        let request = "GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n";
        stream
            .write_all(request.repeat(8).as_bytes())
            .await
            .unwrap();
        let mut answer = [0; 2];
        loop {
            read_head(&mut stream).await;
            stream.read_exact(&mut answer).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
        }
    };
    let others = async {
        for _ in 0..5 {
            assert_eq!(body_of(&function.get().await), "ok");
        }
    };
    tokio::select! {
        () = within(others) => {}
        () = busy => unreachable!("it has no end"),
    }
}

async fn answers_with_two_meanings_are_errors(caller: Caller) {
    for (answer, status, reason) in [
        (
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "502 ",
            "instance_died",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
            "500 ",
            "function_failed",
        ),
        (
            "\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "500 ",
            "function_failed",
        ),
        ("hello\r\n\r\n", "500 ", "function_failed"),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            "500 ",
            "function_failed",
        ),
    ] {
        let function = ScriptedFunction::start(caller, &[(answer, false)]).await;
        let got = function.get().await;
        let start = format!("HTTP/1.1 {status}");
        assert!(got.starts_with(&start), "{answer:?}: {got}");
        assert!(
            got.contains(&format!("\r\nx-nearpath-reason: {reason}\r\n")),
            "{got}"
        );
    }
}

async fn broken_answers_differ_from_complete_ones(caller: Caller) {
    let function =
        ScriptedFunction::start(caller, &[("HTTP/1.1 200 OK\r\ncontent-le", true)]).await;
    let got = function.get().await;
    assert!(
        got.contains("closed the connection before it answered"),
        "{got}"
    );
    assert!(got.contains("x-nearpath-reason: function_failed"), "{got}");
    // Headers are on their way already: only a broken connection can tell.
    let long = "HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\npart";
    let function = ScriptedFunction::start(caller, &[(long, true)]).await;
    let got = function.get().await;
    assert!(
        got.contains("content-length: 100000") && got.ends_with("part"),
        "{got}"
    );
    let chunks = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\nzz\r\n";
    let function = ScriptedFunction::start(caller, &[(chunks, false)]).await;
    let got = function.get().await;
    assert!(!got.ends_with("0\r\n\r\n"), "{got}");
}

#[tokio::test]
async fn a_kill_for_lack_of_memory_explains_a_lost_connection_once() {
    let whole = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let function = ScriptedFunction::start(
        Caller::NEW,
        &[("", true), (whole, false), ("", true), ("", true)],
    )
    .await;
    function.network.oom_kills.store(3, Ordering::Relaxed);
    let got = function.get().await;
    assert!(!got.contains("memory"), "before its connection: {got}");
    assert_eq!(body_of(&function.get().await), "ok");
    // On the same connection.
    function.network.oom_kills.store(4, Ordering::Relaxed);
    let got = function.get().await;
    assert!(
        got.contains("needed more memory") && got.contains("limits.memory"),
        "{got}"
    );
    let got = function.get().await;
    assert!(!got.contains("memory"), "before this call: {got}");
}

async fn the_functions_own_limit_ends_a_call(caller: Caller) {
    let limit = Some(millis(100));
    let function =
        ScriptedFunction::start_with(caller, &[], limit, FunctionPolicy::default()).await;
    let got = within(function.get()).await;
    assert!(got.starts_with("HTTP/1.1 504 "), "{got}");
    assert!(got.contains("x-nearpath-reason: exec_timeout"), "{got}");
    let slow = "HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\npart";
    let scripts = [(slow, false)];
    let function =
        ScriptedFunction::start_with(caller, &scripts, limit, FunctionPolicy::default()).await;
    let got = within(function.get()).await;
    assert!(got.ends_with("part"), "{got}");
    let line = function.first_record().await;
    assert_eq!(line["reason"], "exec_timeout", "{line}");
}

async fn a_caller_that_leaves_ends_the_connection(caller: Caller) {
    let function = ScriptedFunction::start(caller, &[]).await;
    let mut stream = function.connect().await;
    stream
        .write_all(b"GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let has_arrived = async || {
        while function.requests.lock().unwrap().is_empty() {
            tokio::time::sleep(millis(5)).await;
        }
    };
    within(has_arrived()).await;
    drop(stream);
    assert_eq!(function.first_record().await["reason"], "caller_gone");
}

async fn pipelined_requests_are_answered_in_their_order(caller: Caller) {
    let scripts = [
        ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n1", false),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n2\r\n",
            false,
        ),
    ];
    let function = ScriptedFunction::start(caller, &scripts[..1]).await;
    let mut stream = function.connect().await;
    let one = "GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n";
    let last =
        "GET /function/echo HTTP/1.1\r\nhost: a\r\nx-timeout: 5s\r\nconnection: close\r\n\r\n";
    stream
        .write_all([one, last].concat().as_bytes())
        .await
        .unwrap();
    let first = within(read_head(&mut stream)).await;
    assert!(first.contains("content-length: 1"), "{first}");
    let mut rest = String::new();
    within(stream.read_to_string(&mut rest)).await.unwrap();
    assert!(
        rest.starts_with("1HTTP/1.1 200 OK") && rest.ends_with("watchdog"),
        "{rest}"
    );
}

#[tokio::test]
async fn connections_to_a_withdrawn_instance_are_closed() {
    let whole = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let network = Arc::<OwnNetwork>::default();
    let server = Arc::new(FunctionServer {
        addr: listener.local_addr().unwrap(),
        base_path: "/base".to_owned(),
        exec_timeout: None,
        network,
    });
    let fixture = TestGateway::start();
    let watchdog = (Ipv4Addr::LOCALHOST, 1).into();
    publish(&fixture, watchdog, &server, FunctionPolicy::default());
    let serving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let request = read_request(&mut stream).await.unwrap();
        stream.write_all(whole.as_bytes()).await.unwrap();
        (request, stream)
    };
    let get = http::Request::get("/function/echo")
        .body(full_body(""))
        .unwrap();
    let (answer, (request, mut stream)) =
        tokio::join!(send_and_collect(fixture.public, get), serving);
    assert_eq!(answer.body, "ok");
    assert!(request.starts_with("GET /base/ HTTP/1.1\r\n"), "{request}");
    fixture.gateway.publish(&RoutingSnapshot::default());
    assert_eq!(within(stream.read(&mut [0])).await.unwrap(), 0);
}
