//! Calls over QUIC through `nearpath up`: functions with `nearpath.io/transport: quic`, told apart by what the answers, the access log and the
//! metrics say.

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

use crate::house::{Answer, House, http_function, send};
use crate::load::open_loop;

/// Answers with method, path and body; what begins with `/size/` with so many bytes.
pub(crate) const MIRROR: &str = r#"if self.path.startswith("/size/"):
    self.answer(200, b"x" * int(self.path[6:]))
else:
    self.answer(200, f"{self.command} {self.path} ".encode() + body)"#;

fn over_quic(folder: &Path, name: &str, body: &str) -> Value {
    let mut function = http_function(folder, name, body);
    function["annotations"] = json!({ "nearpath.io/transport": "quic" });
    function
}

fn request(method: Method, path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let request = Request::builder().method(method).uri(path).header("host", "localhost");
    request.header("x-nearpath-path", "tell").body(Full::new(body.into())).unwrap()
}

pub(crate) async fn ask(house: &House, method: Method, path: &str, body: impl Into<Bytes>) -> Answer {
    within(send(house.addr, request(method, path, body))).await.unwrap()
}

pub(crate) fn path(answer: &Answer) -> &str {
    answer.headers().get("x-nearpath-path").map_or("none", |path| path.to_str().unwrap())
}

/// The sum of a metric over the series that hold `labels`.
pub(crate) async fn metric(house: &House, name: &str, labels: &str) -> u64 {
    let page = within(send(house.admin, request(Method::GET, "/metrics", ""))).await.unwrap();
    let page = String::from_utf8(page.body().to_vec()).unwrap();
    let of =
        |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])) && line.contains(labels);
    page.lines().filter(of).map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

async fn first_flights(house: &House) -> u64 {
    metric(house, "nearpath_quic_calls_total", "flight=\"first\"").await
}

#[tokio::test]
async fn calls_of_all_sizes_go_over_quic() {
    need_root!();
    let house = House::start().await;
    house.deploy_ready(&over_quic(&house.data_dir, "mirror", MIRROR)).await;
    let answer = ask(&house, Method::GET, "/function/mirror/a?b=c", "").await;
    assert_eq!((answer.status(), answer.body().as_ref()), (StatusCode::OK, b"GET /a?b=c ".as_ref()), "{}", house.log());
    assert_eq!(path(&answer), "quic; not_nearer=no_domain", "{}", house.log());
    let answer = ask(&house, Method::POST, "/function/mirror/", "a body").await;
    assert_eq!((answer.body().as_ref(), path(&answer)), (b"POST / a body".as_ref(), "quic; not_nearer=no_domain"));
    for size in [64 * 1024 - 4096, 64 * 1024, 1 << 20] {
        let body = Bytes::from(vec![b'b'; size]);
        let answer = ask(&house, Method::POST, "/function/mirror/", body).await;
        assert_eq!((answer.body().len(), path(&answer)), (size + "POST / ".len(), "quic; not_nearer=no_domain"));
        let answer = ask(&house, Method::GET, &format!("/function/mirror/size/{size}"), "").await;
        assert_eq!((answer.body().len(), path(&answer)), (size, "quic; not_nearer=no_domain"));
    }
    let head = ask(&house, Method::HEAD, "/function/mirror/", "").await;
    assert_eq!((head.status(), head.body().len()), (StatusCode::NOT_IMPLEMENTED, 0)); // Python's own answer
    assert_eq!(metric(&house, "nearpath_quic_silent_total", "").await, 0);
}

#[tokio::test]
async fn the_first_call_of_a_function_that_slept_is_in_the_first_flight() {
    need_root!();
    let house = House::start().await;
    for (round, name) in ["one", "two", "three"].into_iter().enumerate() {
        house.deploy_ready(&over_quic(&house.data_dir, name, MIRROR)).await;
        house.scale(name, 0).await;
        house.until_available(name, 0).await;
        let answer = ask(&house, Method::GET, &format!("/function/{name}/"), "").await;
        assert_eq!((answer.status(), path(&answer)), (StatusCode::OK, "quic; not_nearer=no_domain"), "{}", house.log());
        assert_eq!(first_flights(&house).await, round as u64 + 1, "{}", house.log());
    }
    house.deploy_ready(&over_quic(&house.data_dir, "four", MIRROR)).await;
    let answer = ask(&house, Method::POST, "/function/four/", "by now UDP is known to get through").await;
    assert_eq!((answer.status(), first_flights(&house).await), (StatusCode::OK, 4));
}

#[tokio::test]
async fn functions_without_a_sandbox_are_called_over_quic_too() {
    let folder = tempfile::tempdir().unwrap();
    let house = House::start_in(folder.path(), &["--no-sandbox"]).await;
    house.deploy_ready(&over_quic(folder.path(), "mirror", MIRROR)).await;
    let answer = ask(&house, Method::GET, "/function/mirror", "").await;
    assert_eq!((answer.status(), path(&answer)), (StatusCode::OK, "quic; not_nearer=no_domain"), "{}", house.log());
    assert_eq!(first_flights(&house).await, 1, "{}", house.log());
}

#[tokio::test]
async fn who_says_that_nothing_goes_early_is_heard() {
    need_root!();
    let house = House::start().await;
    for (name, setting) in [("always", "always"), ("idempotent", "idempotent"), ("never", "never")] {
        let mut function = over_quic(&house.data_dir, name, MIRROR);
        function["annotations"]["nearpath.io/zero-rtt"] = json!(setting);
        house.deploy_ready(&function).await;
    }
    let early = async |name: &str, method: Method| {
        let before = first_flights(&house).await;
        let answer = ask(&house, method, &format!("/function/{name}"), "").await;
        assert_eq!((answer.status(), path(&answer)), (StatusCode::OK, "quic; not_nearer=no_domain"), "{}", house.log());
        first_flights(&house).await > before
    };
    assert!(!early("never", Method::GET).await);
    assert!(!early("idempotent", Method::POST).await);
    assert!(early("always", Method::POST).await);
}

#[tokio::test]
async fn lines_are_opened_ahead_of_calls_for_functions_that_are_called() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    let house = House::start_in(folder.path(), &["--threads", "1"]).await;
    for name in ["called", "idle"] {
        house.deploy_ready(&over_quic(folder.path(), name, MIRROR)).await;
    }
    for _ in 0..5 {
        ask(&house, Method::GET, "/function/called", "").await;
    }
    for name in ["idle", "called"] {
        assert_eq!(metric(&house, "nearpath_quic_opened_ahead_total", "").await, 0, "{}", house.log());
        house.scale(name, 2).await;
        house.until_available(name, 2).await;
    }
    let opened = async || metric(&house, "nearpath_quic_opened_ahead_total", "").await == 1;
    eventually("a line to the second instance", opened).await;
}

pub(crate) async fn connect(house: &House) -> SendRequest<TestBody> {
    let stream = tokio::net::TcpStream::connect(house.addr).await.unwrap();
    let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

pub(crate) type TestBody = http_body_util::combinators::UnsyncBoxBody<Bytes, std::convert::Infallible>;

pub(crate) fn whole(body: &'static str) -> TestBody {
    Full::new(Bytes::from_static(body.as_bytes())).boxed_unsync()
}

/// What an instance has in its `/tmp`, seen from outside.
pub(crate) async fn inside(house: &House, name: &str, file: &str) -> std::path::PathBuf {
    let pid = house.instance_pids(name).await[0];
    format!("/proc/{pid}/root/tmp/{file}").into()
}

#[tokio::test]
async fn a_body_that_comes_in_pieces_arrives_whole() {
    need_root!();
    let house = House::start().await;
    let mut echo = crate::house::echo(&house.data_dir, "echo");
    echo["annotations"] = json!({ "nearpath.io/transport": "quic" });
    house.deploy_ready(&echo).await;
    let (pieces, coming) = tokio::sync::mpsc::unbounded_channel::<Bytes>();
    let coming = futures_util::stream::unfold(coming, async |mut coming| Some((coming.recv().await?, coming)));
    let body = StreamBody::new(coming.map(|piece| Ok(Frame::data(piece)))).boxed_unsync();
    let mut sender = connect(&house).await;
    let request = Request::post("/function/echo").header("host", "x").body(body).unwrap();
    let answer = sender.send_request(request);
    for piece in ["one ", "two ", "three"] {
        pieces.send(piece.into()).unwrap();
        tokio::task::yield_now().await;
    }
    drop(pieces);
    let answer = within(answer).await.unwrap();
    assert_eq!(within(answer.into_body().collect()).await.unwrap().to_bytes(), "one two three");
    assert_eq!(metric(&house, "nearpath_quic_calls_total", "").await, 1, "{}", house.log());
}

#[tokio::test]
async fn killed_instances_cost_only_the_requests_inside_them() {
    need_root!();
    let house = House::start().await;
    let work = over_quic(&house.data_dir, "work", "self.answer(200, b'done')");
    crate::death::only_the_requests_inside_are_lost_of(&house, &work).await;
}

#[tokio::test]
async fn certificates_are_renewed_under_load_without_a_lost_call() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    let house = House::start_in(folder.path(), &["--certificate-lifetime", "3s"]).await;
    house.deploy_ready(&over_quic(folder.path(), "work", "self.answer(200, b'done')")).await;
    let outcome = open_loop(house.addr, "/function/work", 100, Duration::from_secs(10)).await;
    assert!(outcome.failures.is_empty(), "{:?}\n{}", outcome.failures, house.log());
    assert_eq!(metric(&house, "nearpath_quic_silent_total", "").await, 0);
    let answer = ask(&house, Method::GET, "/function/work", "").await;
    assert_eq!(path(&answer), "quic; not_nearer=no_domain", "{}", house.log());
}

#[tokio::test]
async fn a_restart_calls_the_same_functions_under_new_names() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    let mut house = House::start_in(folder.path(), &[]).await;
    house.deploy_ready(&over_quic(folder.path(), "mirror", MIRROR)).await;
    assert_eq!(path(&ask(&house, Method::GET, "/function/mirror", "").await), "quic; not_nearer=no_domain");
    house.end(Signal::KILL);
    let again = House::start_in(folder.path(), &[]).await;
    again.until_available("mirror", 1).await;
    let answer = ask(&again, Method::GET, "/function/mirror", "").await;
    assert_eq!((answer.status(), path(&answer)), (StatusCode::OK, "quic; not_nearer=no_domain"), "{}", again.log());
}

/// From now on nothing leaves this namespace over UDP.
fn block_udp(namespace: &File) -> Result<(), String> {
    let block = || Command::new("ip").args(["rule", "add", "ipproto", "udp", "blackhole"]).status();
    let blocked = namespace::run_in_netns(namespace, block).map_err(|error| format!("ip(8): {error}"))?;
    blocked.success().then_some(()).ok_or_else(|| "ip(8) knows no rules for a protocol".to_owned())
}

pub(crate) async fn instances_namespace(house: &House, name: &str) -> File {
    File::open(format!("/proc/{}/ns/net", house.instance_pids(name).await[0])).unwrap()
}

fn gateways_namespace(house: &House) -> File {
    let threads = std::fs::read_dir(format!("/proc/{}/task", house.pid())).unwrap().map(|one| one.unwrap().path());
    let mut gateways =
        threads.filter(|one| std::fs::read_to_string(one.join("comm")).is_ok_and(|name| name.starts_with("gateway-")));
    File::open(gateways.next().unwrap().join("ns/net")).unwrap()
}

async fn calls_say_that_udp_is_blocked(house: &House) {
    for method in [Method::POST, Method::GET, Method::POST] {
        let answer = ask(house, method.clone(), "/function/mirror", "").await;
        let said = (answer.status(), String::from_utf8_lossy(answer.body()));
        assert_eq!(said, (StatusCode::OK, format!("{method} / ").into()), "{}", house.log());
        assert_eq!(path(&answer), "tls; not_nearer=udp_blocked", "{}", house.log());
    }
    assert!(metric(house, "nearpath_quic_silent_total", "").await > 0);
}

#[tokio::test]
async fn where_udp_never_gets_through_calls_go_over_tcp_and_say_so() {
    need_root!();
    let house = House::start().await;
    house.deploy_ready(&over_quic(&house.data_dir, "mirror", MIRROR)).await;
    if let Err(why) = block_udp(&gateways_namespace(&house)) {
        skip!("{why}");
    }
    calls_say_that_udp_is_blocked(&house).await;
}

#[tokio::test]
async fn a_line_that_falls_silent_costs_no_call_that_may_run_twice() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    let house = House::start_in(folder.path(), &["--threads", "1"]).await;
    house.deploy_ready(&over_quic(folder.path(), "mirror", MIRROR)).await;
    let answer = ask(&house, Method::GET, "/function/mirror", "").await;
    assert_eq!(path(&answer), "quic; not_nearer=no_domain", "the control: UDP gets through");
    if let Err(why) = block_udp(&instances_namespace(&house, "mirror").await) {
        skip!("{why}");
    }
    let answer = ask(&house, Method::GET, "/function/mirror", "").await;
    assert_eq!((answer.status(), path(&answer)), (StatusCode::OK, "tls; not_nearer=udp_blocked"), "{}", house.log());
    calls_say_that_udp_is_blocked(&house).await;
}
