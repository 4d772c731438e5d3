//! Frozen instances: they keep what is in their memory, use no CPU time, and answer when they are called.

use http::{Method, Request, StatusCode};
use http_body_util::Full;
use nearpath_testkit::{eventually, need_root, within};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::datagrams::udp_function;
use crate::test_server::{TestServer, echo_function, http_function, send_request};
use crate::virtual_addresses::{caller, run};

/// Counts its calls. A body is the time to take.
const COUNT_BODY: &str = r#"time.sleep(float(body or 0))
Handler.count = getattr(Handler, "count", 0) + 1
self.answer(200, str(Handler.count).encode())"#;

fn frozen_for(mut function: Value, time: &str) -> Value {
    function["annotations"]["nearpath.io/frozen"] = time.into();
    function
}

fn counter(server: &TestServer, time: &str) -> Value {
    let function = http_function(&server.data_dir, "counter", COUNT_BODY);
    frozen_for(function, time)
}

async fn call(server: &TestServer, body: &'static str) -> String {
    let answer = server.call_function("counter", body).await;
    let text = String::from_utf8_lossy(answer.body()).into_owned();
    assert_eq!(answer.status(), StatusCode::OK, "{text}\n{}", server.log());
    text
}

async fn states(server: &TestServer, function: &str) -> Vec<String> {
    let described = server.describe(function).await;
    let instances = described["instances"].as_array().into_iter().flatten();
    let states = instances.map(|one| one["state"].as_str().unwrap().to_owned());
    states.collect()
}

async fn wait_state(server: &TestServer, function: &str, wanted: &[&str]) {
    let what = format!("{function} is {wanted:?}");
    eventually(&what, async || states(server, function).await == wanted).await;
}

/// Waits until the kernel has stopped a process and its descendants.
async fn wait_stopped(server: &TestServer, function: &str) {
    // The state is set before the kernel stops the processes.
    let pids = server.instance_processes(function).await;
    assert!(!pids.is_empty());
    eventually("its processes have stopped", async || {
        let frozen = |pid: &i32| {
            let path = format!("/proc/{pid}/cgroup");
            let groups = std::fs::read_to_string(path).unwrap_or_default();
            let unified = groups.lines().find_map(|line| line.strip_prefix("0::"));
            unified.is_some_and(is_frozen)
        };
        pids.iter().all(frozen)
    })
    .await;
}

fn is_frozen(group: &str) -> bool {
    // Hybrid machines have the unified hierarchy in a folder of its own.
    let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    roots.iter().any(|root| {
        let events = std::fs::read_to_string(format!("{root}{group}/cgroup.events"));
        events.is_ok_and(|events| events.contains("frozen 1"))
    })
}

/// Scales a function to zero, and waits until its instance is frozen.
async fn freeze(server: &TestServer, function: &str) {
    server.scale(function, 0).await;
    wait_state(server, function, &["frozen"]).await;
    wait_stopped(server, function).await;
}

#[tokio::test]
async fn a_frozen_instance_answers_the_next_call() {
    need_root!();
    let server = TestServer::start().await;
    server.deploy_ready(&counter(&server, "10m")).await;
    let pids = server.instance_pids("counter").await;
    for count in ["1", "2", "3"] {
        assert_eq!(call(&server, "").await, count, "{}", server.log());
        freeze(&server, "counter").await;
    }
    assert_eq!(call(&server, "").await, "4");
    // The same processes: none was started for a call.
    assert_eq!(server.instance_pids("counter").await, pids);
    assert_eq!(
        server.metric_total("nearpath_instance_thaws_total").await,
        3
    );
}

#[tokio::test]
async fn open_calls_end_before_an_instance_is_frozen() {
    need_root!();
    let server = TestServer::start().await;
    server.deploy_ready(&counter(&server, "10m")).await;
    let sleep = async {
        eventually("the call has begun", async || {
            let metrics = server.read_metrics().await;
            metrics.contains("inflight{function_name=\"counter.openfaas-fn\"} 1")
        })
        .await;
        freeze(&server, "counter").await;
    };
    // The call is open while the function is scaled to zero.
    let (count, ()) = tokio::join!(call(&server, "1"), sleep);
    assert_eq!(count, "1");
    assert_eq!(call(&server, "").await, "2");
}

#[tokio::test]
async fn a_server_of_another_protocol_keeps_its_data() {
    need_root!();
    let server = TestServer::start().await;
    let mut store = http_function(&server.data_dir, "store", "");
    store["envProcess"] = "redis-server --port 6379 --save '' --protected-mode no".into();
    store["envVars"]["upstream_url"] = "http://127.0.0.1:6379".into();
    server.deploy_ready(&frozen_for(store, "10m")).await;
    server.deploy_ready(&caller(&server, "cart", "store")).await;
    // Redis keeps this in its memory alone.
    let set = r#"result = ask("store", 6379, b"SET key kept\r\n")[0]"#;
    assert_eq!(run(&server, "cart", set).await, "+OK\r\n");
    for _ in 0..2 {
        freeze(&server, "store").await;
        let get = r#"result = ask("store", 6379, b"GET key\r\n")[0]"#;
        assert_eq!(
            run(&server, "cart", get).await,
            "$4\r\nkept\r\n",
            "{}",
            server.log()
        );
    }
}

/// A socket that has used an instance does not stay with it while it is frozen.
#[tokio::test]
async fn datagrams_wake_a_frozen_instance() {
    need_root!();
    let server = TestServer::start().await;
    let store = frozen_for(udp_function(&server, "store"), "10m");
    server.deploy_ready(&store).await;
    server.deploy_ready(&caller(&server, "cart", "store")).await;
    // One socket for all calls of the program.
    let open = "import builtins
builtins.kept = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
kept.settimeout(30)
kept.sendto(b'x', ('store', 7000))
result = kept.recv(100).decode().split()[1]";
    assert_eq!(run(&server, "cart", open).await, "1");
    for count in ["2", "3"] {
        freeze(&server, "store").await;
        let again = "kept.sendto(b'x', ('store', 7000))
result = kept.recv(100).decode().split()[1]";
        assert_eq!(run(&server, "cart", again).await, count);
    }
}

/// Callers that keep a connection see its end when it has been idle for a while, as with a function that is scaled to zero.
#[tokio::test]
async fn kept_connections_of_others_end() {
    need_root!();
    let server = TestServer::start().await;
    let body = "time.sleep(0.5)\nself.answer(200, b'x')";
    let other = http_function(&server.data_dir, "other", body);
    server.deploy_ready(&frozen_for(other, "10m")).await;
    let calls = "other balance=connection";
    server.deploy_ready(&caller(&server, "front", calls)).await;
    let program = r#"import http.client
connection = http.client.HTTPConnection("other", timeout=20)
connection.request("GET", "/")
result = connection.getresponse().read().decode()
result += connection.sock.recv(1).decode()"#;
    let sleep = async {
        eventually("the connection is open", async || {
            let edges = server.send_request(Method::GET, "/system/edges", "").await;
            let edges: Value = serde_json::from_slice(edges.body()).unwrap();
            let mut rows = edges.as_array().unwrap().iter();
            rows.any(|row| row["connections"] == 1)
        })
        .await;
        freeze(&server, "other").await;
    };
    let (end, ()) = tokio::join!(run(&server, "front", program), sleep);
    assert_eq!(end, "ECONNRESET", "not before the response");
    let again = run(&server, "front", "result = get('http://other/')").await;
    assert_eq!(again, "x");
}

#[tokio::test]
async fn frozen_instances_end_at_their_time_and_with_their_revision() {
    need_root!();
    let server = TestServer::start().await;
    server.deploy_ready(&counter(&server, "300ms")).await;
    server.scale("counter", 0).await;
    wait_state(&server, "counter", &[]).await;
    assert_eq!(call(&server, "").await, "1", "a new instance");
    server.deploy(&counter(&server, "10m")).await;
    // Old instances answer until a new one is ready.
    let is_new = async || call(&server, "").await == "1";
    eventually("the next revision answers", is_new).await;
    freeze(&server, "counter").await;
    server.deploy(&counter(&server, "20m")).await;
    eventually("the third revision answers", is_new).await;
}

#[tokio::test]
async fn no_end_of_the_server_leaves_a_frozen_process() {
    need_root!();
    // A frozen process handles no signal but SIGKILL.
    for signal in [Signal::TERM, Signal::KILL] {
        let folder = tempfile::tempdir().unwrap();
        let mut server = TestServer::start_in(folder.path(), &[]).await;
        server.deploy_ready(&counter(&server, "10m")).await;
        freeze(&server, "counter").await;
        let pids = server.instance_processes("counter").await;
        server.end_with(signal);
        let is_there = |pid: &i32| std::path::Path::new(&format!("/proc/{pid}")).exists();
        eventually("its processes end", async || !pids.iter().any(is_there)).await;
    }
}

/// Thawed instances are called through memory again.
#[tokio::test]
async fn a_thawed_instance_has_its_channels_again() {
    need_root!();
    let server = TestServer::start().await;
    let mut echo = frozen_for(echo_function(&server.data_dir, "echo"), "10m");
    echo["annotations"]["nearpath.io/chain"] = json!("shop");
    server.deploy_ready(&echo).await;
    // A question mark asks for the path of the call.
    let path = async || {
        let request = Request::post("/function/echo").header("host", "localhost");
        let request = request.header("X-Nearpath-Path", "?");
        let request = request.body(Full::from("x")).unwrap();
        let answer = within(send_request(server.addr, request)).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{}", server.log());
        let path = answer.headers().get("X-Nearpath-Path").cloned();
        path.map(|path| path.to_str().unwrap().to_owned())
    };
    eventually("calls take memory", async || {
        path().await.is_some_and(|path| path.starts_with("shm"))
    })
    .await;
    for _ in 0..2 {
        freeze(&server, "echo").await;
        assert!(path().await.is_some());
        eventually("calls take memory again", async || {
            path().await.is_some_and(|path| path.starts_with("shm"))
        })
        .await;
    }
}
