//! Plain requests to a function's own server, which answers byte by byte what a test tells it.

mod kept_connections;
mod new_connections;

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nearpath_testkit::within;
use nearpath_types::{
    FunctionPolicy, FunctionServer, InstanceNetwork, InstanceState, RoutingSnapshot,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{
    TestGateway, full_body, function_route, instance_entry, millis, read_head, send_and_collect,
    start_instance,
};

/// Network of an instance that is this process's own.
#[derive(Debug, Default)]
struct OwnNetwork {
    oom_kills: AtomicU64,
    sockets: AtomicUsize,
}

impl InstanceNetwork for OwnNetwork {
    fn open_tcp_socket(&self, _: bool) -> io::Result<OwnedFd> {
        self.sockets.fetch_add(1, Ordering::Relaxed);
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        Ok(socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            flags,
            None,
        )?)
    }

    fn oom_kills(&self) -> Option<u64> {
        Some(self.oom_kills.load(Ordering::Relaxed))
    }
}

/// Connection on which a request comes.
#[derive(Clone, Copy)]
enum Caller {
    /// A new one: its task answers.
    New,
    /// A new one, when the function's server has an idle connection: the event loop answers, if the
    /// request is there.
    Later,
    /// One that has had a response from the function's own port: the event loop answers.
    Kept,
}

/// Runs each test with all callers.
macro_rules! test_all_callers {
    ($($test:ident,)*) => {$(
        mod $test {
            use super::Caller;

            #[tokio::test]
            async fn on_a_new_connection() {
                super::$test(Caller::New).await;
            }

            #[tokio::test]
            async fn on_a_later_connection() {
                super::$test(Caller::Later).await;
            }

            #[tokio::test]
            async fn on_a_kept_connection() {
                super::$test(Caller::Kept).await;
            }
        }
    )*};
}

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

const REQUEST: &str = "GET /function/echo/x HTTP/1.1\r\nhost: a\r\n\r\n";
const WHOLE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Path of requests that only open connections. The server answers them by itself.
const WARM_UP_PATH: &str = "/warm-up";

/// A function whose server is scripted, and whose route names that server.
struct ScriptedFunction {
    caller: Caller,
    fixture: TestGateway,
    network: Arc<OwnNetwork>,
    /// Heads and bodies that the server got.
    requests: Arc<Mutex<Vec<String>>>,
}

/// Answer of the server: the bytes, and whether it closes then.
type Script = (&'static str, bool);

impl ScriptedFunction {
    /// Starts a function whose server answers each request with the next script.
    async fn start(caller: Caller, scripts: &[Script]) -> Self {
        Self::start_with(caller, scripts, None, FunctionPolicy::default()).await
    }

    async fn start_with(
        caller: Caller,
        scripts: &[Script],
        exec_timeout: Option<Duration>,
        policy: FunctionPolicy,
    ) -> Self {
        Self::start_on(TestGateway::start(), caller, scripts, exec_timeout, policy).await
    }

    async fn start_on(
        fixture: TestGateway,
        caller: Caller,
        scripts: &[Script],
        exec_timeout: Option<Duration>,
        policy: FunctionPolicy,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let requests = Arc::default();
        tokio::spawn(serve_scripts(
            listener,
            scripts.to_vec(),
            Arc::clone(&requests),
        ));
        let watchdog = start_instance(async |_| http::Response::new(full_body("watchdog"))).await;
        let network = Arc::<OwnNetwork>::default();
        let server = Arc::new(FunctionServer {
            addr,
            base_path: String::new(),
            exec_timeout,
            network: network.clone(),
        });
        publish(&fixture, watchdog, &server, policy);
        Self {
            caller,
            fixture,
            network,
            requests,
        }
    }

    /// Returns the server as if it listened at another address.
    fn listen_at(&self, addr: SocketAddr) -> Arc<FunctionServer> {
        Arc::new(FunctionServer {
            addr,
            base_path: String::new(),
            exec_timeout: None,
            network: self.network.clone(),
        })
    }

    /// Opens a connection for a request.
    async fn connect(&self) -> TcpStream {
        self.connect_and_write("").await
    }

    /// Opens a connection for a request, of which the first bytes follow at once.
    async fn connect_and_write(&self, bytes: &str) -> TcpStream {
        let warmed_up = match self.caller {
            Caller::New => None,
            Caller::Later | Caller::Kept => Some(self.warm_up().await),
        };
        let mut stream = match (self.caller, warmed_up) {
            (Caller::Kept, Some(kept)) => kept,
            _ => std::net::TcpStream::connect(self.fixture.public).unwrap(),
        };
        let _ = stream.write_all(bytes.as_bytes()); // an early answer may close
        stream.set_nonblocking(true).unwrap();
        TcpStream::from_std(stream).unwrap()
    }

    /// Returns a connection that has had a response of the server.
    async fn warm_up(&self) -> std::net::TcpStream {
        let mut stream = TcpStream::connect(self.fixture.public).await.unwrap();
        let request = format!("GET /function/echo{WARM_UP_PATH} HTTP/1.1\r\nhost: a\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        within(read_head(&mut stream)).await;
        let stream = stream.into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream
    }

    async fn send(&self, request: &str) -> String {
        let mut stream = self.connect_and_write(request).await;
        let mut answer = String::new();
        within(stream.read_to_string(&mut answer)).await.unwrap();
        answer
    }

    async fn get(&self) -> String {
        let text = "GET /function/echo/x?y HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        self.send(text).await
    }

    fn request(&self, number: usize) -> String {
        self.requests.lock().unwrap()[number].clone()
    }

    /// Waits for the first line of the access log, which is written behind the response.
    async fn first_record(&self) -> serde_json::Value {
        let first = async || {
            loop {
                let is_asked = |line: &serde_json::Value| {
                    !line["path"].as_str().unwrap().ends_with(WARM_UP_PATH)
                };
                let mut lines = self.fixture.log.parse_lines().into_iter();
                if let Some(line) = lines.find(is_asked) {
                    return line;
                }
                tokio::time::sleep(millis(5)).await;
            }
        };
        within(first()).await
    }

    fn socket_count(&self) -> usize {
        self.network.sockets.load(Ordering::Relaxed)
    }
}

fn publish(
    fixture: &TestGateway,
    watchdog: SocketAddr,
    server: &Arc<FunctionServer>,
    policy: FunctionPolicy,
) {
    let mut route = function_route("echo", policy, &[]);
    let mut instance = instance_entry(watchdog, InstanceState::Ready);
    instance.server = Some(server.clone());
    (route.instances, route.replicas) = (vec![instance], 1);
    fixture.gateway.publish(&RoutingSnapshot {
        version: 1,
        functions: [route].into_iter().collect(),
    });
}

/// Serves one connection at a time, as a simple server does.
async fn serve_scripts(
    listener: TcpListener,
    scripts: Vec<Script>,
    requests: Arc<Mutex<Vec<String>>>,
) {
    let mut scripts = scripts.into_iter();
    while let Ok((mut stream, _)) = listener.accept().await {
        while let Some(request) = read_request(&mut stream).await {
            if request.starts_with(&format!("GET {WARM_UP_PATH} ")) {
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(answer).await.unwrap();
                continue;
            }
            requests.lock().unwrap().push(request);
            let Some((bytes, closes)) = scripts.next() else {
                return std::future::pending().await;
            };
            let _ = stream.write_all(bytes.as_bytes()).await;
            if closes {
                break;
            }
        }
    }
}

/// Reads a response whose body has this length.
async fn read_response(stream: &mut TcpStream, length: usize) -> (String, String) {
    let head = within(read_head(stream)).await;
    let mut body = vec![0; length];
    within(stream.read_exact(&mut body)).await.unwrap();
    (head, String::from_utf8(body).unwrap())
}

async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        head.push(char::from(stream.read_u8().await.ok()?));
    }
    let length = head.split("content-length: ").nth(1);
    let length = length.map_or(0, |rest| {
        rest.split("\r\n").next().unwrap().parse().unwrap()
    });
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(head + std::str::from_utf8(&body).unwrap())
}

/// Returns how many calls event loops have answered.
fn inline_calls(function: &ScriptedFunction) -> u64 {
    let metrics = function.fixture.encode_metrics();
    let name = "nearpath_inline_calls_total ";
    let mut counts = metrics.lines().filter_map(|line| line.strip_prefix(name));
    counts.next().unwrap().parse().unwrap()
}

fn body_of(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
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
    let function = ScriptedFunction::start(Caller::New, &[]).await;
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
    let function = ScriptedFunction::start(Caller::New, &[]).await;
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
        Caller::New,
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
