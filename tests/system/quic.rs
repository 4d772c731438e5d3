//! Calls over QUIC with `nearpath.io/transport: quic`, recognised by responses, access log and
//! metrics.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use nearpath_kernel::namespace;
use nearpath_testkit::{eventually, need_root, skip, within};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::load::open_loop;
use crate::test_server::{TestResponse, TestServer, http_function, send_request};

/// Responds with method, path and body; to `/size/N` with N bytes.
pub(crate) const MIRROR_BODY: &str = r#"if self.path.startswith("/size/"):
    self.answer(200, b"x" * int(self.path[6:]))
else:
    self.answer(200, f"{self.command} {self.path} ".encode() + body)"#;

fn quic_function(folder: &Path, name: &str, body: &str) -> Value {
    let mut function = http_function(folder, name, body);
    function["annotations"] = json!({ "nearpath.io/transport": "quic" });
    function
}

fn post_request(method: Method, path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost");
    request
        .header("x-nearpath-path", "tell")
        .body(Full::new(body.into()))
        .unwrap()
}

pub(crate) async fn send_traced(
    server: &TestServer,
    method: Method,
    path: &str,
    body: impl Into<Bytes>,
) -> TestResponse {
    within(send_request(server.addr, post_request(method, path, body)))
        .await
        .unwrap()
}

pub(crate) fn path_of(answer: &TestResponse) -> &str {
    answer
        .headers()
        .get("x-nearpath-path")
        .map_or("none", |path| path.to_str().unwrap())
}

/// Sum of a metric over the series with `labels`.
pub(crate) async fn metric_value(server: &TestServer, name: &str, labels: &str) -> u64 {
    let page = within(send_request(
        server.admin,
        post_request(Method::GET, "/metrics", ""),
    ))
    .await
    .unwrap();
    let page = String::from_utf8(page.body().to_vec()).unwrap();
    let of = |line: &&str| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(['{', ' ']))
            && line.contains(labels)
    };
    page.lines()
        .filter(of)
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
        .sum()
}

async fn first_flights(server: &TestServer) -> u64 {
    metric_value(server, "nearpath_quic_calls_total", "flight=\"first\"").await
}

#[tokio::test]
async fn calls_of_all_sizes_go_over_quic() {
    need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&quic_function(&server.data_dir, "mirror", MIRROR_BODY))
        .await;
    let answer = send_traced(&server, Method::GET, "/function/mirror/a?b=c", "").await;
    assert_eq!(
        (answer.status(), answer.body().as_ref()),
        (StatusCode::OK, b"GET /a?b=c ".as_ref()),
        "{}",
        server.log()
    );
    assert_eq!(
        path_of(&answer),
        "quic; obstacle=no_domain",
        "{}",
        server.log()
    );
    let answer = send_traced(&server, Method::POST, "/function/mirror/", "a body").await;
    assert_eq!(
        (answer.body().as_ref(), path_of(&answer)),
        (b"POST / a body".as_ref(), "quic; obstacle=no_domain")
    );
    for size in [64 * 1024 - 4096, 64 * 1024, 1 << 20] {
        let body = Bytes::from(vec![b'b'; size]);
        let answer = send_traced(&server, Method::POST, "/function/mirror/", body).await;
        assert_eq!(
            (answer.body().len(), path_of(&answer)),
            (size + "POST / ".len(), "quic; obstacle=no_domain")
        );
        let answer = send_traced(
            &server,
            Method::GET,
            &format!("/function/mirror/size/{size}"),
            "",
        )
        .await;
        assert_eq!(
            (answer.body().len(), path_of(&answer)),
            (size, "quic; obstacle=no_domain")
        );
    }
    let head = send_traced(&server, Method::HEAD, "/function/mirror/", "").await;
    assert_eq!(
        (head.status(), head.body().len()),
        (StatusCode::NOT_IMPLEMENTED, 0)
    ); // Python's own response
    assert_eq!(
        metric_value(&server, "nearpath_quic_silent_total", "").await,
        0
    );
}

#[tokio::test]
async fn the_first_call_of_a_function_that_slept_is_in_the_first_flight() {
    need_root!();
    let server = TestServer::start().await;
    for (round, name) in ["one", "two", "three"].into_iter().enumerate() {
        server
            .deploy_ready(&quic_function(&server.data_dir, name, MIRROR_BODY))
            .await;
        server.scale(name, 0).await;
        server.wait_available(name, 0).await;
        let answer = send_traced(&server, Method::GET, &format!("/function/{name}/"), "").await;
        assert_eq!(
            (answer.status(), path_of(&answer)),
            (StatusCode::OK, "quic; obstacle=no_domain"),
            "{}",
            server.log()
        );
        assert_eq!(
            first_flights(&server).await,
            round as u64 + 1,
            "{}",
            server.log()
        );
    }
    server
        .deploy_ready(&quic_function(&server.data_dir, "four", MIRROR_BODY))
        .await;
    let answer = send_traced(
        &server,
        Method::POST,
        "/function/four/",
        "by now UDP is known to get through",
    )
    .await;
    assert_eq!(
        (answer.status(), first_flights(&server).await),
        (StatusCode::OK, 4)
    );
}

#[tokio::test]
async fn functions_without_a_sandbox_are_called_over_quic_too() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &["--no-sandbox"]).await;
    server
        .deploy_ready(&quic_function(folder.path(), "mirror", MIRROR_BODY))
        .await;
    let answer = send_traced(&server, Method::GET, "/function/mirror", "").await;
    assert_eq!(
        (answer.status(), path_of(&answer)),
        (StatusCode::OK, "quic; obstacle=no_domain"),
        "{}",
        server.log()
    );
    assert_eq!(first_flights(&server).await, 1, "{}", server.log());
}

#[tokio::test]
async fn a_function_that_forbids_early_data_gets_none() {
    need_root!();
    let server = TestServer::start().await;
    for (name, setting) in [
        ("always", "always"),
        ("idempotent", "idempotent"),
        ("never", "never"),
    ] {
        let mut function = quic_function(&server.data_dir, name, MIRROR_BODY);
        function["annotations"]["nearpath.io/zero-rtt"] = json!(setting);
        server.deploy_ready(&function).await;
    }
    let early = async |name: &str, method: Method| {
        let before = first_flights(&server).await;
        let answer = send_traced(&server, method, &format!("/function/{name}"), "").await;
        assert_eq!(
            (answer.status(), path_of(&answer)),
            (StatusCode::OK, "quic; obstacle=no_domain"),
            "{}",
            server.log()
        );
        first_flights(&server).await > before
    };
    assert!(!early("never", Method::GET).await);
    assert!(!early("idempotent", Method::POST).await);
    assert!(early("always", Method::POST).await);
}

#[tokio::test]
async fn connections_are_opened_ahead_for_functions_that_are_called() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &["--threads", "1"]).await;
    for name in ["called", "idle"] {
        server
            .deploy_ready(&quic_function(folder.path(), name, MIRROR_BODY))
            .await;
    }
    for _ in 0..5 {
        send_traced(&server, Method::GET, "/function/called", "").await;
    }
    for name in ["idle", "called"] {
        assert_eq!(
            metric_value(&server, "nearpath_quic_opened_ahead_total", "").await,
            0,
            "{}",
            server.log()
        );
        server.scale(name, 2).await;
        server.wait_available(name, 2).await;
    }
    let opened = async || metric_value(&server, "nearpath_quic_opened_ahead_total", "").await == 1;
    eventually("a line to the second instance", opened).await;
}

pub(crate) async fn connect_http1(server: &TestServer) -> SendRequest<TestBody> {
    let stream = tokio::net::TcpStream::connect(server.addr).await.unwrap();
    let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

pub(crate) type TestBody =
    http_body_util::combinators::UnsyncBoxBody<Bytes, std::convert::Infallible>;

pub(crate) fn full_body(body: &'static str) -> TestBody {
    Full::new(Bytes::from_static(body.as_bytes())).boxed_unsync()
}

/// Path from outside of a file in an instance's `/tmp`.
pub(crate) async fn instance_file(
    server: &TestServer,
    name: &str,
    file: &str,
) -> std::path::PathBuf {
    let pid = server.instance_pids(name).await[0];
    format!("/proc/{pid}/root/tmp/{file}").into()
}

#[tokio::test]
async fn a_body_that_comes_in_pieces_arrives_whole() {
    need_root!();
    let server = TestServer::start().await;
    let mut echo = crate::test_server::echo_function(&server.data_dir, "echo");
    echo["annotations"] = json!({ "nearpath.io/transport": "quic" });
    server.deploy_ready(&echo).await;
    let (pieces, coming) = tokio::sync::mpsc::unbounded_channel::<Bytes>();
    let coming = futures_util::stream::unfold(coming, async |mut coming| {
        Some((coming.recv().await?, coming))
    });
    let body = StreamBody::new(coming.map(|piece| Ok(Frame::data(piece)))).boxed_unsync();
    let mut sender = connect_http1(&server).await;
    let request = Request::post("/function/echo")
        .header("host", "x")
        .body(body)
        .unwrap();
    let answer = sender.send_request(request);
    for piece in ["one ", "two ", "three"] {
        pieces.send(piece.into()).unwrap();
        tokio::task::yield_now().await;
    }
    drop(pieces);
    let answer = within(answer).await.unwrap();
    assert_eq!(
        within(answer.into_body().collect())
            .await
            .unwrap()
            .to_bytes(),
        "one two three"
    );
    assert_eq!(
        metric_value(&server, "nearpath_quic_calls_total", "").await,
        1,
        "{}",
        server.log()
    );
}

#[tokio::test]
async fn killed_instances_cost_only_the_requests_inside_them() {
    need_root!();
    let server = TestServer::start().await;
    let work = quic_function(&server.data_dir, "work", "self.answer(200, b'done')");
    crate::process_death::only_the_requests_inside_are_lost_of(&server, &work).await;
}

#[tokio::test]
async fn certificates_are_renewed_under_load_without_a_lost_call() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    // The issuer has a low priority: on a busy machine it needs seconds.
    let server = TestServer::start_in(folder.path(), &["--certificate-lifetime", "12s"]).await;
    server
        .deploy_ready(&quic_function(
            folder.path(),
            "work",
            "self.answer(200, b'done')",
        ))
        .await;
    let outcome = open_loop(server.addr, "/function/work", 100, Duration::from_secs(14)).await;
    assert!(
        outcome.failures.is_empty(),
        "{:?}\n{}",
        outcome.failures,
        server.log()
    );
    assert_eq!(
        metric_value(&server, "nearpath_quic_silent_total", "").await,
        0
    );
    let answer = send_traced(&server, Method::GET, "/function/work", "").await;
    assert_eq!(
        path_of(&answer),
        "quic; obstacle=no_domain",
        "{}",
        server.log()
    );
}

#[tokio::test]
async fn a_restart_calls_the_same_functions_under_new_names() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    let mut server = TestServer::start_in(folder.path(), &[]).await;
    server
        .deploy_ready(&quic_function(folder.path(), "mirror", MIRROR_BODY))
        .await;
    assert_eq!(
        path_of(&send_traced(&server, Method::GET, "/function/mirror", "").await),
        "quic; obstacle=no_domain"
    );
    server.end_with(Signal::KILL);
    let again = TestServer::start_in(folder.path(), &[]).await;
    again.wait_available("mirror", 1).await;
    let answer = send_traced(&again, Method::GET, "/function/mirror", "").await;
    assert_eq!(
        (answer.status(), path_of(&answer)),
        (StatusCode::OK, "quic; obstacle=no_domain"),
        "{}",
        again.log()
    );
}

/// Blocks outgoing UDP of this namespace.
fn block_udp(namespace: &File) -> Result<(), String> {
    let block = || {
        Command::new("ip")
            .args(["rule", "add", "ipproto", "udp", "blackhole"])
            .status()
    };
    let blocked =
        namespace::run_in_netns(namespace, block).map_err(|error| format!("ip(8): {error}"))?;
    blocked
        .success()
        .then_some(())
        .ok_or_else(|| "ip(8) knows no rules for a protocol".to_owned())
}

pub(crate) async fn instances_namespace(server: &TestServer, name: &str) -> File {
    File::open(format!(
        "/proc/{}/ns/net",
        server.instance_pids(name).await[0]
    ))
    .unwrap()
}

fn gateways_namespace(server: &TestServer) -> File {
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid()))
        .unwrap()
        .map(|one| one.unwrap().path());
    let mut gateways = threads.filter(|one| {
        std::fs::read_to_string(one.join("comm")).is_ok_and(|name| name.starts_with("gateway-"))
    });
    File::open(gateways.next().unwrap().join("ns/net")).unwrap()
}

async fn wait_udp_blocked(server: &TestServer) {
    for method in [Method::POST, Method::GET, Method::POST] {
        let answer = send_traced(server, method.clone(), "/function/mirror", "").await;
        let reply = (answer.status(), String::from_utf8_lossy(answer.body()));
        assert_eq!(
            reply,
            (StatusCode::OK, format!("{method} / ").into()),
            "{}",
            server.log()
        );
        assert_eq!(
            path_of(&answer),
            "tls; obstacle=udp_blocked",
            "{}",
            server.log()
        );
    }
    assert!(metric_value(server, "nearpath_quic_silent_total", "").await > 0);
}

#[tokio::test]
async fn without_udp_calls_go_over_tcp_and_report_it() {
    need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&quic_function(&server.data_dir, "mirror", MIRROR_BODY))
        .await;
    if let Err(why) = block_udp(&gateways_namespace(&server)) {
        skip!("{why}");
    }
    wait_udp_blocked(&server).await;
}

#[tokio::test]
async fn a_stalled_connection_loses_no_call_that_may_run_twice() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &["--threads", "1"]).await;
    server
        .deploy_ready(&quic_function(folder.path(), "mirror", MIRROR_BODY))
        .await;
    let answer = send_traced(&server, Method::GET, "/function/mirror", "").await;
    assert_eq!(
        path_of(&answer),
        "quic; obstacle=no_domain",
        "the control: UDP gets through"
    );
    if let Err(why) = block_udp(&instances_namespace(&server, "mirror").await) {
        skip!("{why}");
    }
    let answer = send_traced(&server, Method::GET, "/function/mirror", "").await;
    assert_eq!(
        (answer.status(), path_of(&answer)),
        (StatusCode::OK, "tls; obstacle=udp_blocked"),
        "{}",
        server.log()
    );
    wait_udp_blocked(&server).await;
}
