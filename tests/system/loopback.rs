//! Calls to a function's own port, and the same calls through its watchdog: callers and functions
//! see no difference.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use nearpath_testkit::{need_root, within};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::test_server::{TestServer, http_function};

/// The function's answers, by path.
const CODE: &str = r#"path = self.path.split("?")[0]
if path == "/headers":
    own = ("x-call-id", "x-start-time", "x-timeout", "x-nearpath-path")
    names = sorted(k.lower() + ": " + v for k, v in self.headers.items() if k.lower() not in own)
    self.answer(200, "\n".join(names).encode())
elif path == "/empty":
    self.send_response(204); self.end_headers()
elif path == "/chunks":
    self.send_response(200); self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
    for part in (b"one", b"two"):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part)); time.sleep(0.05)
    self.wfile.write(b"0\r\n\r\n")
elif path == "/close":
    self.send_response(200); self.end_headers(); self.wfile.write(b"until the end"); self.close_connection = True
elif path == "/hop":
    self.send_response(200)
    for name, value in (("Connection", "x-own"), ("X-Own", "1"), ("Keep-Alive", "timeout=9"), ("X-Nearpath-Reason", "forged"),
            ("X-Duration-Seconds", "9"), ("X-Kept", "a"), ("X-Kept", "b"), ("Content-Type", "text/x"), ("Content-Length", "2")):
        self.send_header(name, value)
    self.end_headers(); self.wfile.write(b"ok")
elif path == "/large":
    self.answer(200, b"x" * 300_000)
elif path == "/error":
    self.answer(500, b"of the function")
elif path == "/switch":
    self.send_response(101); self.end_headers()
elif path == "/broken":
    self.connection.shutdown(2)
elif path == "/slow":
    time.sleep(float(self.path.split("?")[1])); self.answer(200, b"slow")
elif path == "/pid":
    self.answer(200, str(os.getpid()).encode())
else:
    self.answer(200, self.path.encode() + b" " + body)"#;

/// A response: its status line, its fields without those of one call, and its body.
#[derive(Debug, PartialEq, Eq)]
struct SeenResponse {
    status: String,
    fields: BTreeMap<String, Vec<String>>,
    body: Vec<u8>,
}

/// A running function with the code above.
struct BothFunction {
    server: TestServer,
    spec: Value,
}

impl BothFunction {
    /// Starts the function with one more variable and, if asked, with a server that handles one
    /// connection at a time.
    async fn start(variable: Option<(&str, &str)>, is_serial: bool) -> Self {
        Self::start_with(
            |spec| {
                if let Some((name, value)) = variable {
                    spec["envVars"][name] = json!(value);
                }
            },
            is_serial,
        )
        .await
    }

    /// Starts the function with a server whose bytes sockmap moves.
    async fn start_by_sockmap() -> Self {
        let annotate =
            |spec: &mut Value| spec["annotations"]["nearpath.io/loopback"] = json!("sockmap");
        Self::start_with(annotate, false).await
    }

    async fn start_with(change: impl FnOnce(&mut Value), is_serial: bool) -> Self {
        let server = TestServer::start().await;
        let mut spec = http_function(&server.data_dir, "both", CODE);
        change(&mut spec);
        if is_serial {
            let source = server.data_dir.join("fn-both/server.py");
            let threaded = std::fs::read_to_string(&source).unwrap();
            std::fs::write(&source, threaded.replace("ThreadingHTTP", "HTTP")).unwrap();
        }
        server.deploy_ready(&spec).await;
        Self { server, spec }
    }

    /// Asserts the path of a call with these further lines: else a test would compare one path with
    /// itself.
    async fn assert_path(&self, lines: &str, path: &str) {
        let lines = format!("x-nearpath-path: ?\r\n{lines}");
        let text = exchange(
            self.server.addr,
            "GET /function/both HTTP/1.1\r\n\r\n",
            &lines,
        )
        .await;
        let text = String::from_utf8(text).unwrap();
        let field = format!("\r\nx-nearpath-path: {path}; obstacle=no_domain\r\n");
        assert!(text.contains(&field), "{path}: {text}");
    }
}

/// Sends a request whose head gets these further lines; returns the bytes of the response.
async fn exchange(addr: SocketAddr, request: &str, lines: &str) -> Vec<u8> {
    let (start, rest) = request.split_once("\r\n").unwrap();
    let text = format!("{start}\r\nhost: site.example\r\nconnection: close\r\n{lines}{rest}");
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = within(stream.read_to_end(&mut answer)).await; // broken answers end with an error
    answer
}

/// Sends a request whose head gets these further lines.
async fn send(addr: SocketAddr, request: &str, lines: &str) -> SeenResponse {
    let answer = exchange(addr, request, lines).await;
    let end = answer
        .windows(4)
        .position(|part| part == b"\r\n\r\n")
        .unwrap();
    let head = String::from_utf8(answer[..end].to_vec()).unwrap();
    let (status, fields) = head.split_once("\r\n").unwrap();
    let mut seen = BTreeMap::<String, Vec<String>>::new();
    for (name, value) in fields.lines().filter_map(|line| line.split_once(": ")) {
        let of_one_call = [
            "date",
            "x-call-id",
            "x-start-time",
            "x-duration-seconds",
            "x-nearpath-path",
        ];
        let value = if of_one_call.contains(&name) {
            ""
        } else {
            value
        };
        seen.entry(name.to_owned())
            .or_default()
            .push(value.to_owned());
    }
    SeenResponse {
        status: status.to_owned(),
        fields: seen,
        body: answer[end + 4..].to_vec(),
    }
}

/// Lines that keep a request from the function's own port.
const VIA_WATCHDOG: &str = "x-timeout: 50s\r\n";

#[tokio::test]
async fn both_paths_give_the_same_responses() {
    need_root!();
    let function = BothFunction::start(None, false).await;
    assert_same_responses(&function).await;
    assert_eq!(
        function
            .server
            .metric_total("nearpath_loopback_connections_total")
            .await,
        0
    );
}

#[tokio::test]
async fn the_own_port_by_sockmap_gives_the_watchdogs_responses() {
    need_root!();
    nearpath_testkit::need_support!(nearpath_kernel::bpf::LoopbackRedirect::check_support());
    let function = BothFunction::start_by_sockmap().await;
    assert_same_responses(&function).await;
    let total = async |name| function.server.metric_total(name).await;
    let connections = total("nearpath_loopback_connections_total").await;
    let redirected = total("nearpath_loopback_redirected_messages_total").await;
    assert!(
        connections > 0 && redirected > connections,
        "{connections} {redirected}"
    );
}

/// Asserts that the function's own port and its watchdog give the same responses.
async fn assert_same_responses(function: &BothFunction) {
    let addr = function.server.addr;
    function.assert_path("", "loopback").await;
    function.assert_path(VIA_WATCHDOG, "http").await;
    for (request, is_refusal) in [
        ("GET /function/both/a%20b?c=%2F HTTP/1.1\r\n\r\n", false),
        ("GET /function/both HTTP/1.1\r\n\r\n", false),
        (
            "POST /function/both/x HTTP/1.1\r\ncontent-length: 4\r\n\r\nbody",
            false,
        ),
        (
            "GET /function/both/headers HTTP/1.1\r\nx-forwarded-for: 192.0.2.1\r\nforwarded: for=1\r\nx-nearpath-caller: evil\r\nCookie: a=b\r\n\r\n",
            false,
        ),
        (
            "POST /function/both/empty HTTP/1.1\r\ncontent-type: a/b\r\ncontent-length: 0\r\n\r\n",
            false,
        ),
        (
            "POST /function/both/error HTTP/1.1\r\ncontent-type: a/b\r\ncontent-length: 0\r\n\r\n",
            false,
        ),
        ("GET /function/both/chunks HTTP/1.1\r\n\r\n", false),
        ("GET /function/both/close HTTP/1.1\r\n\r\n", false),
        ("GET /function/both/hop HTTP/1.1\r\n\r\n", false),
        ("GET /function/both/large HTTP/1.1\r\n\r\n", false),
        ("GET /function/both/switch HTTP/1.1\r\n\r\n", true),
        ("GET /function/both/broken HTTP/1.1\r\n\r\n", true),
    ] {
        let mut direct = send(addr, request, "").await;
        let mut watched = send(addr, request, VIA_WATCHDOG).await;
        if is_refusal {
            // Texts, and what counts them, name the component that refused.
            for seen in [&mut direct, &mut watched] {
                seen.body.clear();
                seen.fields.remove("content-length");
                seen.fields.remove("x-openfaas-internal");
                seen.fields.remove("x-duration-seconds");
            }
        }
        assert_eq!(direct, watched, "{request}");
    }
}

#[tokio::test]
async fn a_call_in_progress_outlives_the_stop_of_its_instance() {
    need_root!();
    let function = BothFunction::start(None, false).await;
    function.assert_path("", "loopback").await;
    let BothFunction { server, mut spec } = function;
    // Longer than the watchdog waits before it stops to listen.
    let (addr, request) = (server.addr, "GET /function/both/slow?4 HTTP/1.1\r\n\r\n");
    let slow = tokio::spawn(send(addr, request, ""));
    tokio::time::sleep(Duration::from_millis(300)).await; // it is with the function by then
    spec["envVars"]["revision"] = json!("2");
    let answer = server
        .send_request(Method::PUT, "/system/functions", spec.to_string())
        .await;
    assert!(answer.status().is_success(), "{:?}", answer.body());
    let seen = within(slow).await.unwrap();
    assert_eq!(
        (seen.status.as_str(), &seen.body[..]),
        ("HTTP/1.1 200 OK", &b"slow"[..])
    );
    // The old instance ends once nothing is connected to its port.
    server.wait_available("both", 1).await;
}

#[tokio::test]
async fn the_limit_of_a_call_is_the_same_on_both_paths() {
    need_root!();
    let function = BothFunction::start(Some(("exec_timeout", "500ms")), false).await;
    function.assert_path("", "loopback").await;
    let request = "GET /function/both/slow?9 HTTP/1.1\r\n\r\n";
    for lines in ["", VIA_WATCHDOG] {
        let seen = send(function.server.addr, request, lines).await;
        let text = String::from_utf8_lossy(&seen.body).into_owned();
        assert!(
            seen.status.contains(" 504 "),
            "{lines}: {} {text}",
            seen.status
        );
        assert_eq!(
            seen.fields["x-nearpath-reason"],
            ["exec_timeout"],
            "{lines}: {text}"
        );
    }
}

#[tokio::test]
async fn a_function_whose_watchdog_counts_keeps_its_watchdog() {
    need_root!();
    let function = BothFunction::start(Some(("max_inflight", "1")), false).await;
    function.assert_path("", "http").await;
}

#[tokio::test]
async fn both_paths_reach_a_server_that_handles_one_connection_at_a_time() {
    need_root!();
    let function = BothFunction::start(None, true).await;
    function.assert_path("", "loopback").await;
    let addr = function.server.addr;
    for (busy_lines, other_lines) in [("", VIA_WATCHDOG), (VIA_WATCHDOG, "")] {
        // Two callers: one's next request is there when the other's response is written.
        let busy = [(); 2].map(|()| tokio::spawn(send_for_ever(addr, busy_lines)));
        for _ in 0..3 {
            let seen = send(addr, "GET /function/both/x HTTP/1.1\r\n\r\n", other_lines).await;
            assert_eq!(seen.status, "HTTP/1.1 200 OK", "{busy_lines:?}");
        }
        for one in busy {
            assert!(!one.is_finished(), "the busy caller got an answer to each");
            one.abort();
        }
    }
}

/// Sends requests over one connection, each after the answer to the one before.
async fn send_for_ever(addr: SocketAddr, lines: &str) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!("GET /function/both/x HTTP/1.1\r\nhost: a\r\n{lines}\r\n");
    loop {
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        while !answer.ends_with("\r\n\r\n/x ") {
            answer.push(char::from(stream.read_u8().await.unwrap()));
        }
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }
}
