//! Functions call each other by name with any protocol: the kernel translates their virtual addresses.

use std::collections::BTreeSet;
use std::path::Path;

use http::{Method, StatusCode};
use nearpath_testkit::{eventually, need_root, program, within};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::forwarding::{all_links, host_links};
use crate::test_server::{TestServer, http_function};

/// Runs the program in its body; responds with what it assigns to `result`, or with its error.
const RUN_BODY: &str = r#"import errno, json, socket
def ask(host, port, message):
    with socket.create_connection((host, port), 20) as connection:
        connection.sendall(message)
        return connection.recv(100).decode(), connection.getpeername()[0]
def get(url):
    with urllib.request.urlopen(url, timeout=60) as reply:
        return reply.read().decode()
names = dict(globals(), ask=ask, get=get, socket=socket)
try:
    exec(body.decode(), names)
    result = names["result"]
except urllib.error.HTTPError as error:
    result = [error.code, error.headers.get("X-Nearpath-Reason")]
except OSError as error:
    error = getattr(error, "reason", error)
    result = errno.errorcode.get(error.errno, str(error))
self.answer(200, json.dumps(result).encode())"#;

/// Responds with the path, and with the caller that the gateway names.
const MIRROR_BODY: &str = r#"self.answer(200, (self.path + " from " + str(self.headers.get("X-Nearpath-Caller"))).encode())"#;

pub(crate) fn caller(server: &TestServer, name: &str, calls: &str) -> Value {
    let mut function = http_function(&server.data_dir, name, RUN_BODY);
    function["annotations"] = json!({ "nearpath.io/chain": "shop", "nearpath.io/calls": calls });
    function
}

/// A Redis server as a function: its port is ready when it accepts connections.
fn redis(server: &TestServer, name: &str) -> Value {
    let mut function = http_function(&server.data_dir, name, "");
    function["envProcess"] = "redis-server --port 6379 --save '' --protected-mode no".into();
    function["envVars"]["upstream_url"] = "http://127.0.0.1:6379".into();
    function
}

pub(crate) async fn run(server: &TestServer, function: &str, program: &'static str) -> Value {
    let answer = server.call_function(function, program).await;
    let text = String::from_utf8_lossy(answer.body()).into_owned();
    assert_eq!(answer.status(), StatusCode::OK, "{text}\n{}", server.log());
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn a_function_that_speaks_redis_is_called_by_name() {
    need_root!();
    let server = TestServer::start().await;
    // The caller first: its names exist before the function behind them.
    server.deploy_ready(&caller(&server, "cart", "store")).await;
    server
        .deploy_ready(&caller(&server, "stranger", "cart"))
        .await;
    server.deploy_ready(&redis(&server, "store")).await;
    let ping = r#"result = ask("store", 6379, b"PING\r\n") + ask("store.shop", 6379, b"PING\r\n") + ask("store.openfaas-fn.nearpath", 6379, b"PING\r\n") + (socket.gethostbyname("store"),)"#;
    let answer = run(&server, "cart", ping).await;
    let address = answer[6].as_str().unwrap();
    assert!(address.starts_with("10.60."), "{answer}");
    let pong = json!(["+PONG\r\n", address]);
    for at in [0, 2, 4] {
        assert_eq!(json!([answer[at], answer[at + 1]]), pong, "{answer}");
    }
    let described = server.describe("store").await;
    assert_eq!(described["virtualAddress"], address);
}

#[tokio::test]
async fn only_declared_callees_are_reached() {
    need_root!();
    let server = TestServer::start().await;
    server.deploy_ready(&redis(&server, "store")).await;
    server
        .deploy_ready(&caller(&server, "stranger", "absent"))
        .await;
    let address = server.describe("store").await["virtualAddress"].to_string();
    for (program, expected) in [
        (
            format!("result = ask({address}, 6379, b'PING\\r\\n')"),
            "EPERM",
        ),
        (
            format!("result = ask('::ffff:' + {address}, 6379, b'')"),
            "EPERM",
        ),
        // HTTP, too: the address alone gives no right.
        (
            format!("result = get('http://' + {address} + '/')"),
            "EPERM",
        ),
        ("result = socket.gethostbyname('store')".to_owned(), "name"),
    ] {
        let answer = run(&server, "stranger", program.clone().leak()).await;
        assert!(answer.to_string().contains(expected), "{program}: {answer}");
    }
    let denied = r#"nearpath_edge_connections_denied_total{caller="stranger.openfaas-fn",callee="store.openfaas-fn",reason="not_allowed"} 3"#;
    let metrics = server.read_metrics().await;
    assert!(metrics.contains(denied), "{metrics}");
    eventually("the denial is in the log", async || {
        let log = server.log();
        log.contains("was denied") && log.contains("callee=store.openfaas-fn")
    })
    .await;
    let edges = server.send_request(Method::GET, "/system/edges", "").await;
    let edges: Value = serde_json::from_slice(edges.body()).unwrap();
    let mut rows = edges.as_array().unwrap().iter();
    let row = rows.find(|row| row["caller"] == "stranger.openfaas-fn");
    assert_eq!(row.unwrap()["deniedConnections"], 3, "{edges}");
}

#[tokio::test]
async fn http_by_name_is_a_call_of_the_gateway() {
    need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&http_function(&server.data_dir, "mirror", MIRROR_BODY))
        .await;
    server
        .deploy_ready(&caller(&server, "front", "glass=mirror"))
        .await;
    for (url, path) in [
        ("http://mirror:8080/a/b?c=d", "/a/b?c=d"),
        ("http://mirror", "/"),
        ("http://glass/", "/"),
        ("http://mirror.shop/function/other", "/function/other"),
        (
            "http://mirror.openfaas-fn.nearpath:8080/healthz",
            "/healthz",
        ),
        (
            "http://[::ffff:' + socket.gethostbyname('mirror') + ']/six",
            "/six",
        ),
    ] {
        let program = format!("result = get('{url}')");
        let answer = run(&server, "front", program.leak()).await;
        assert_eq!(answer, format!("{path} from front.openfaas-fn"), "{url}");
    }
    server.scale("mirror", 0).await;
    let woken = run(&server, "front", "result = get('http://mirror/again')").await;
    assert_eq!(woken, "/again from front.openfaas-fn", "{}", server.log());
}

#[tokio::test]
async fn a_connection_wakes_a_function_of_any_protocol() {
    need_root!();
    let server = TestServer::start().await;
    server.deploy_ready(&redis(&server, "store")).await;
    server.deploy_ready(&caller(&server, "cart", "store")).await;
    server.scale("store", 0).await;
    server.wait_available("store", 0).await;
    let address = server.describe("store").await["virtualAddress"].clone();
    let ping = r#"result = ask("store", 6379, b"PING\r\n")"#;
    for state in ["asleep", "awake"] {
        let answer = run(&server, "cart", ping).await;
        assert_eq!(
            answer,
            json!(["+PONG\r\n", address]),
            "{state}: {}",
            server.log()
        );
    }
}

/// Tells by a key that its connection is open, and uses it until an error.
const HOLD_CONNECTION: &str = r#"import time
s = socket.create_connection(("store", 6379), 20)
s.sendall(b"SET open 1\r\n")
result, end = s.recv(100).decode(), time.time() + 30
while time.time() < end:
    s.sendall(b"PING\r\n")
    if not s.recv(100):
        result = "end of stream"
        break
    time.sleep(0.01)"#;

#[tokio::test]
async fn a_draining_instance_loses_connections_of_removed_edges() {
    need_root!();
    let server = TestServer::start().await;
    server.deploy_ready(&redis(&server, "store")).await;
    server.deploy_ready(&caller(&server, "cart", "store")).await;
    server
        .deploy_ready(&caller(&server, "watcher", "store"))
        .await;
    let held = run(&server, "cart", HOLD_CONNECTION);
    let replaced = async {
        let get = r#"result = ask("store", 6379, b"GET open\r\n")[0]"#;
        eventually("the connection is open", async || {
            run(&server, "watcher", get).await == "$1\r\n1\r\n"
        })
        .await;
        server.deploy(&caller(&server, "cart", "absent")).await;
    };
    // The request keeps the instance of the old revision draining.
    let (end, ()) = tokio::join!(held, replaced);
    assert_eq!(end, "ECONNABORTED", "{}", server.log());
    // The caller sees the end before the node has counted it.
    eventually("the cut is counted", async || {
        let cut = server.metric_total("nearpath_switch_cut_connections_total");
        cut.await == 1
    })
    .await;
    let get = r#"result = ask("store", 6379, b"GET open\r\n")[0]"#;
    assert_eq!(run(&server, "watcher", get).await, "$1\r\n1\r\n");
}

/// Sockets and routes end with their namespaces, programs with the process.
#[tokio::test]
async fn any_end_of_the_server_removes_the_switch() {
    need_root!();
    for signal in [Signal::TERM, Signal::KILL] {
        let folder = tempfile::tempdir().unwrap();
        let mut server = TestServer::start_in(folder.path(), &[]).await;
        let mirror = http_function(folder.path(), "mirror", MIRROR_BODY);
        server.deploy_ready(&mirror).await;
        let links = host_links(server.pid());
        let count = |wanted| links.values().filter(|kind| *kind == wanted).count();
        assert!(count("cgroup") >= 11, "{links:?}");
        assert_eq!(
            count("netns"),
            2,
            "of the hub and of the instance: {links:?}"
        );
        // Ids of links are not used again soon.
        let links: BTreeSet<_> = links.into_keys().collect();
        assert!(links.is_subset(&all_links()));
        server.end_with(signal);
        eventually("the programs are detached", async || {
            links.is_disjoint(&all_links())
        })
        .await;
    }
}

/// `examples/visits` as its page shows it.
#[tokio::test]
async fn the_example_counts_visits() {
    need_root!();
    let server = TestServer::start().await;
    let stack = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/visits/stack.yml");
    let mut deploy = Command::new(program("nearpath"));
    deploy.args(["deploy", "-f"]).arg(stack);
    deploy.env("GATEWAY", format!("http://{}", server.addr));
    let deployed = within(deploy.output()).await.unwrap();
    assert!(deployed.status.success(), "{deployed:?}");
    for times in 1..=2 {
        let request = server.send_request(Method::GET, "/function/counter/home", "");
        let answer = request.await;
        let text = String::from_utf8_lossy(answer.body());
        assert_eq!(
            text,
            format!("/home was visited {times} times\n"),
            "{}",
            server.log()
        );
    }
}

/// The source of a connection to the gateway tells which function it is for, and gives no right.
#[tokio::test]
async fn a_chosen_source_gives_no_permission() {
    need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&http_function(&server.data_dir, "mirror", MIRROR_BODY))
        .await;
    server
        .deploy_ready(&caller(&server, "stranger", "absent"))
        .await;
    let address = server.describe("mirror").await["virtualAddress"].to_string();
    let program = format!(
        r#"connection = socket.socket()
connection.bind(("127.60." + {address}.split(".", 2)[2], 0))
connection.connect(("127.0.0.2", 8080))
connection.sendall(b"GET / HTTP/1.1\r\nHost: mirror\r\nX-Nearpath-Caller: mirror.openfaas-fn\r\n\r\n")
result = connection.recv(1000).decode()"#
    );
    let answer = run(&server, "stranger", program.leak()).await;
    let answer = answer.as_str().unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(answer.contains("not_allowed"), "{answer}");
}

#[tokio::test]
async fn a_connection_that_waits_in_vain_is_reset() {
    need_root!();
    let server = TestServer::start().await;
    let mut broken = redis(&server, "store");
    broken["envProcess"] = "sleep 1000".into();
    broken["annotations"] = json!({ "nearpath.io/cold-timeout": "500ms" });
    server.deploy(&broken).await;
    server.deploy_ready(&caller(&server, "cart", "store")).await;
    let ping = r#"result = ask("store", 6379, b"PING\r\n")"#;
    let answer = run(&server, "cart", ping).await;
    assert_eq!(answer, "ECONNRESET", "{}", server.log());
    let why = "no instance became ready within 500ms (nearpath.io/cold-timeout)";
    eventually(why, async || server.log().contains(why)).await;
}

/// Answers each connection at port 7000 with some bytes and a reset.
const BREAKING_SERVER: &str = r#"import socket, struct, threading
listener = socket.create_server(("", 7000))
def serve():
    while True:
        connection, _ = listener.accept()
        connection.recv(10)
        connection.sendall(b"partial")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
threading.Thread(target=serve, daemon=True).start()
"#;

/// Through the node, as straight to an instance: a reset is no end of the content.
#[tokio::test]
async fn a_reset_of_the_callee_reaches_a_caller_that_woke_it() {
    need_root!();
    let server = TestServer::start().await;
    let callee = http_function(&server.data_dir, "breaking", "self.answer(200, b'')");
    let file = server.data_dir.join("fn-breaking/server.py");
    let source = std::fs::read_to_string(&file).unwrap();
    // The listener is there before the port that shows readiness.
    std::fs::write(&file, format!("{BREAKING_SERVER}{source}")).unwrap();
    server.deploy_ready(&callee).await;
    server
        .deploy_ready(&caller(&server, "reader", "breaking"))
        .await;
    let program = r#"connection = socket.create_connection(("breaking", 7000), 30)
connection.sendall(b"go")
result = ""
while True:
    part = connection.recv(100)
    if not part:
        result += " end"
        break
    result += part.decode()"#;
    for state in ["awake", "asleep"] {
        if state == "asleep" {
            server.scale("breaking", 0).await;
            server.wait_available("breaking", 0).await;
        }
        assert_eq!(
            run(&server, "reader", program).await,
            "ECONNRESET",
            "{state}"
        );
    }
}
