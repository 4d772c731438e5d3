//! Labels of OpenFaaS scale functions by their load, to zero and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::StatusCode;
use nearpath_testkit::{eventually, need_root, within};
use serde_json::{Value, json};

use crate::shm::{call_traced, chain_function, metric_value, run_cli, wait_in_memory};
use crate::test_server::{TestServer, echo_function, http_function, send_request};

/// The page whose example this test runs.
const PAGE: &str = include_str!("../../docs/guide/autoscaling.md");

fn labels(all: &[(&str, &str)]) -> Value {
    let all = all.iter();
    all.map(|(key, value)| (format!("com.openfaas.scale.{key}"), json!(value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Sleep after a second without traffic, and no second replica.
fn zero_labels() -> Value {
    labels(&[("zero", "true"), ("zero-duration", "1s"), ("max", "1")])
}

/// Callers in a closed loop, until they are stopped.
struct ClosedLoop {
    is_stopped: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    callers: Vec<tokio::task::JoinHandle<()>>,
}

impl ClosedLoop {
    fn start(server: &TestServer, function: &'static str, callers: usize) -> Self {
        let (is_stopped, answered) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
        let callers = (0..callers).map(|_| {
            let (address, is_stopped) = (server.addr, is_stopped.clone());
            let answered = answered.clone();
            tokio::spawn(async move {
                while !is_stopped.load(Ordering::Relaxed) {
                    let request = http::Request::get(format!("/function/{function}"))
                        .header("host", "localhost");
                    let request = request.body(http_body_util::Full::default()).unwrap();
                    let answer = within(send_request(address, request)).await.unwrap();
                    assert_eq!(answer.status(), StatusCode::OK, "{:?}", answer.body());
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        Self {
            callers: callers.collect(),
            is_stopped,
            answered,
        }
    }

    fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Ends the loop; each request was answered.
    async fn stop(self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.await.unwrap();
        }
    }
}

async fn wait_asleep(server: &TestServer, name: &str) {
    eventually("it sleeps", async || {
        let status = server.describe(name).await;
        status["replicas"] == 0 && status["availableReplicas"] == 0
    })
    .await;
}

/// Deploys a function that sleeps by the same settings as those of a test.
async fn deploy_reference(server: &TestServer) {
    let mut reference = echo_function(&server.data_dir, "reference");
    reference["labels"] = zero_labels();
    server.deploy_ready(&reference).await;
}

/// Waits for as long as a function needs to sleep: the reference is called last now.
async fn wait_reference_asleep(server: &TestServer) {
    assert_eq!(server.call_function("reference", "").await.status(), 200);
    wait_asleep(server, "reference").await;
}

#[tokio::test]
async fn concurrent_requests_start_replicas() {
    need_root!();
    let server = TestServer::start().await;
    let code = "time.sleep(0.2)\nself.answer(200, b'done')";
    let mut slow = http_function(&server.data_dir, "slow", code);
    slow["labels"] = labels(&[("type", "capacity"), ("target", "1"), ("max", "4")]);
    server.deploy_ready(&slow).await;
    let status = server.describe("slow").await;
    assert_eq!(status["replicas"], 1, "a deployment starts the minimum");
    let load = ClosedLoop::start(&server, "slow", 6);
    server.wait_available("slow", 4).await;
    let status = server.describe("slow").await;
    assert_eq!(status["replicas"], 4, "{status}");
    assert_eq!(status["autoscaling"]["type"], "capacity", "{status}");
    load.stop().await;
    let function = r#"function_name="slow.openfaas-fn""#;
    for (metric, value) in [
        ("gateway_service_target_load", 1.0),
        ("gateway_service_min", 1.0),
        ("nearpath_autoscaler_replicas", 4.0),
    ] {
        assert_eq!(metric_value(&server, metric, function).await, value);
    }
    let log = server.log();
    assert!(log.contains("autoscaler: replicas changed"), "{log}");
    // The user's number counts, and the load decides from there.
    server.scale("slow", 2).await;
    assert_eq!(server.describe("slow").await["replicas"], 2);
    server.scale("slow", 9).await;
    assert_eq!(server.describe("slow").await["replicas"], 4, "the maximum");
}

#[tokio::test]
async fn a_function_without_requests_sleeps_and_one_request_wakes_it() {
    need_root!();
    let mut server = TestServer::start().await;
    let mut echo = echo_function(&server.data_dir, "echo");
    echo["labels"] = zero_labels();
    server.deploy_ready(&echo).await;
    server
        .deploy_ready(&echo_function(&server.data_dir, "other"))
        .await;
    wait_asleep(&server, "echo").await;
    let requests: [_; 5] = std::array::from_fn(|_| server.call_function("echo", "wake up"));
    for answer in futures_util::future::join_all(requests).await {
        assert_eq!(
            (answer.status(), answer.body().as_ref()),
            (StatusCode::OK, b"wake up".as_ref()),
            "{}",
            server.log()
        );
    }
    let started = server.describe("echo").await["instances"]
        .as_array()
        .map_or(0, Vec::len);
    assert_eq!(started, 1, "all requests share one start");
    wait_asleep(&server, "echo").await;
    assert_eq!(server.describe("other").await["replicas"], 1);
    // A restart knows the stored number only.
    let folder = server.data_dir.clone();
    server.end_with(rustix::process::Signal::TERM);
    let server = TestServer::start_in(&folder, &[]).await;
    server.wait_available("echo", 1).await;
    wait_asleep(&server, "echo").await;
    server.deploy_ready(&echo).await;
}

#[tokio::test]
async fn calls_through_memory_keep_a_function_awake() {
    need_root!();
    let server = TestServer::start().await;
    let mut second = chain_function(&server, "second", None, "");
    second["labels"] = zero_labels();
    let first = chain_function(&server, "first", Some("second"), "second");
    server.deploy_ready(&first).await;
    server.deploy_ready(&second).await;
    // Only the first function is called at the gateway.
    wait_in_memory(&server, "first").await;
    eventually("first calls second", async || {
        call_traced(&server, "first").await.status() == 200
    })
    .await;
    deploy_reference(&server).await;
    let instance = server.instance_pids("second").await;
    let load = ClosedLoop::start(&server, "first", 1);
    for _ in 0..2 {
        wait_reference_asleep(&server).await;
    }
    assert!(load.answered() > 0);
    assert_eq!(server.instance_pids("second").await, instance);
    load.stop().await;
    wait_asleep(&server, "second").await;
}

#[tokio::test]
async fn connections_to_its_own_port_keep_a_function_awake() {
    need_root!();
    let server = TestServer::start().await;
    let code = r#"import socket
try:
    connection = socket.create_connection(("store", 7000), 20)
    time.sleep(float(body or b"0"))
    self.answer(200, connection.recv(10))
except OSError as error:
    self.answer(500, str(error).encode())"#;
    let mut front = http_function(&server.data_dir, "front", code);
    front["annotations"] = json!({ "nearpath.io/chain": "shop", "nearpath.io/calls": "store" });
    let mut store = http_function(&server.data_dir, "store", "self.answer(200, b'http')");
    let server_code = server.data_dir.join("fn-store/server.py");
    let source = std::fs::read_to_string(&server_code).unwrap();
    let raw = r#"import socketserver, threading
class Raw(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(b"raw")
        self.request.recv(1)
socketserver.ThreadingTCPServer.daemon_threads = True
threading.Thread(target=socketserver.ThreadingTCPServer(("0.0.0.0", 7000), Raw).serve_forever, daemon=True).start()
"#;
    std::fs::write(&server_code, format!("{raw}{source}")).unwrap();
    store["annotations"] = json!({ "nearpath.io/chain": "shop" });
    store["labels"] = zero_labels();
    server.deploy_ready(&front).await;
    server.deploy_ready(&store).await;
    deploy_reference(&server).await;
    let instance = server.instance_pids("store").await;
    // An open connection, then short ones.
    let (answer, ()) = tokio::join!(
        server.call_function("front", "6"),
        wait_reference_asleep(&server)
    );
    let text = String::from_utf8_lossy(answer.body());
    assert_eq!(text, "raw", "{}", server.log());
    let load = ClosedLoop::start(&server, "front", 1);
    wait_reference_asleep(&server).await;
    load.stop().await;
    assert_eq!(server.instance_pids("store").await, instance);
    wait_asleep(&server, "store").await;
}

#[tokio::test]
async fn the_example_of_the_guide_scales() {
    need_root!();
    let server = TestServer::start().await;
    let folder = server.data_dir.join("guide");
    std::fs::create_dir_all(folder.join("resize")).unwrap();
    let block = |kind: &str| {
        let block = PAGE.split(&format!("```{kind}\n")).nth(1).unwrap();
        block.split("```").next().unwrap()
    };
    std::fs::write(folder.join("stack.yml"), block("yaml")).unwrap();
    std::fs::write(folder.join("resize/server.py"), block("python")).unwrap();
    let stack = folder.join("stack.yml");
    let command = std::process::Command::new(nearpath_testkit::program("nearpath"))
        .args(["deploy", "-f", stack.to_str().unwrap(), "--gateway"])
        .arg(format!("http://{}", server.addr))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&command.stderr);
    assert!(
        command.status.success() && !said.contains("no effect"),
        "{said}"
    );
    server.wait_available("resize", 1).await;
    let load = ClosedLoop::start(&server, "resize", 6);
    eventually("more replicas are ready", async || {
        run_cli(&server, &["describe", "resize"])["availableReplicas"].as_u64() > Some(1)
    })
    .await;
    load.stop().await;
    let status = run_cli(&server, &["describe", "resize"]);
    assert_eq!(status["autoscaling"]["target"], 2, "{status}");
}
