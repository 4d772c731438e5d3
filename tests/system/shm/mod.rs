//! Functions of one chain share memory: calls of the gateway and among them use it, along declared
//! edges only.

mod calls;
mod status;

use http::{Method, Request};
use http_body_util::Full;
use nearpath_testkit::{eventually, program};
use serde_json::{Value, json};

use crate::test_server::{TestResponse, TestServer, send_request};

/// A function that receives calls over HTTP and through shared memory, and calls `next`, if any,
/// before it responds.
pub(crate) fn chain_function(
    server: &TestServer,
    name: &str,
    next: Option<&str>,
    calls: &str,
) -> Value {
    let folder = server.data_dir.join("chain");
    if !folder.exists() {
        std::fs::create_dir(&folder).unwrap();
        nearpath_testkit::copy_program(program("test-chain-function"), folder.join("function"));
    }
    let next = next.map(|next| format!(" {next}")).unwrap_or_default();
    json!({
        "service": name,
        "image": format!("file://{}", folder.display()),
        "envProcess": format!("./function{next}"),
        "envVars": { "mode": "http", "upstream_url": "http://127.0.0.1:5000" },
        "annotations": { "nearpath.io/chain": "shop", "nearpath.io/calls": calls },
    })
}

/// Calls a function with the path header.
pub(crate) async fn call_traced(server: &TestServer, name: &str) -> TestResponse {
    let request = Request::builder()
        .method(Method::GET)
        .uri(format!("/function/{name}"));
    let request = request
        .header("host", "localhost")
        .header("x-nearpath-path", "?");
    send_request(server.addr, request.body(Full::default()).unwrap())
        .await
        .unwrap()
}

pub(crate) fn path_of(answer: &TestResponse) -> &str {
    answer.headers()["x-nearpath-path"].to_str().unwrap()
}

/// Waits until calls go through memory to the function itself, from every thread of the gateway.
///
/// Until a function's library is ready, its watchdog represents it: it takes calls through memory
/// and passes them on over HTTP. Each gateway thread learns of both on its own, and the kernel
/// distributes connections among the threads.
pub(crate) async fn wait_in_memory(server: &TestServer, name: &str) {
    let mut in_a_row = 0;
    eventually(
        "calls go through memory, to the function itself",
        async || {
            let answer = call_traced(server, name).await;
            in_a_row = if path_of(&answer) == "shm" && !is_over_http(&answer) {
                in_a_row + 1
            } else {
                0
            };
            in_a_row == 20
        },
    )
    .await;
}

/// Returns true if the function got the call over HTTP.
fn is_over_http(answer: &TestResponse) -> bool {
    String::from_utf8_lossy(answer.body()).contains("came over HTTP")
}

/// Runs a command and parses its output as JSON.
pub(crate) fn run_cli(server: &TestServer, arguments: &[&str]) -> Value {
    let gateway = format!("http://{}", server.addr);
    let mut command = std::process::Command::new(program("nearpath"));
    let output = command
        .args(arguments)
        .args(["--json", "--gateway", &gateway])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Value of the only series with this name and these labels.
pub(crate) async fn metric_value(server: &TestServer, name: &str, labels: &str) -> f64 {
    let text = server.read_metrics().await;
    let ours = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(labels);
    let found: Vec<_> = text.lines().filter(ours).collect();
    let [line] = &found[..] else {
        panic!("{name}{{{labels}}}: {found:?}")
    };
    line.rsplit(' ').next().unwrap().parse().unwrap()
}
