//! Functions of one chain share memory: calls of the gateway and among them use it, along declared
//! edges only.

use std::path::Path;

use http::{Method, Request};
use http_body_util::Full;
use nearpath_testkit::{eventually, program};
use rustix::process::{Pid, Signal, kill_process};
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

#[tokio::test]
async fn a_chain_calls_through_memory_along_its_edges_only() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    for (name, next, calls) in [
        ("second", None, ""),
        ("first", Some("second"), "second"),
        ("stranger", Some("second"), ""),
    ] {
        server
            .deploy_ready(&chain_function(&server, name, next, calls))
            .await;
        wait_in_memory(&server, name).await;
    }
    eventually("first knows second", async || {
        call_traced(&server, "first").await.status() == 200
    })
    .await;
    let answer = call_traced(&server, "first").await;
    assert_eq!(
        (
            answer.status().as_u16(),
            path_of(&answer),
            answer.body().len()
        ),
        (200, "shm", 100)
    );
    let refused = call_traced(&server, "stranger").await;
    assert_eq!(
        (refused.status().as_u16(), path_of(&refused)),
        (502, "shm"),
        "it has no edge"
    );
    let mut foreign = chain_function(&server, "foreign", Some("second"), "second");
    foreign["annotations"]["nearpath.io/chain"] = json!("another");
    server.deploy_ready(&foreign).await;
    wait_in_memory(&server, "foreign").await;
    let refused = call_traced(&server, "foreign").await;
    assert_eq!(
        (refused.status().as_u16(), path_of(&refused)),
        (502, "shm"),
        "an edge out of its chain is no ring"
    );
}

#[tokio::test]
async fn an_alias_calls_through_memory() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&chain_function(&server, "second", None, ""))
        .await;
    server
        .deploy_ready(&chain_function(
            &server,
            "first",
            Some("rates"),
            "rates=second",
        ))
        .await;
    wait_in_memory(&server, "first").await;
    eventually("first knows it as rates", async || {
        call_traced(&server, "first").await.status() == 200
    })
    .await;
    server
        .deploy_ready(&chain_function(&server, "other", Some("rates"), "second"))
        .await;
    wait_in_memory(&server, "other").await;
    let refused = call_traced(&server, "other").await;
    assert_eq!(
        (refused.status().as_u16(), path_of(&refused)),
        (502, "shm"),
        "the alias is the first one's own"
    );
}

#[tokio::test]
async fn a_function_of_no_chain_is_called_over_http_and_reported_so() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    let mut alone = chain_function(&server, "alone", None, "");
    alone["annotations"] = json!({});
    server.deploy_ready(&alone).await;
    let answer = call_traced(&server, "alone").await;
    assert_eq!(
        (answer.status().as_u16(), path_of(&answer)),
        (200, "http; not_nearer=no_domain")
    );
}

#[tokio::test]
async fn a_killed_instance_is_replaced_in_memory_too() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&chain_function(&server, "second", None, ""))
        .await;
    server
        .deploy_ready(&chain_function(&server, "first", Some("second"), "second"))
        .await;
    wait_in_memory(&server, "first").await;
    for _ in 0..3 {
        let victim = server.instance_pids("second").await[0];
        kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
        let gone = async || !Path::new(&format!("/proc/{victim}")).exists();
        eventually("it is dead", gone).await;
        eventually("first reaches the new one", async || {
            let answer = call_traced(&server, "first").await;
            answer.status() == 200 && path_of(&answer) == "shm"
        })
        .await;
    }
}

/// Value of a metric without labels.
async fn total_calls(server: &TestServer, name: &str) -> f64 {
    let request = Request::builder()
        .uri("/metrics")
        .header("host", "localhost")
        .body(Full::default())
        .unwrap();
    let text = String::from_utf8(
        send_request(server.admin, request)
            .await
            .unwrap()
            .into_body()
            .to_vec(),
    )
    .unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

#[tokio::test]
async fn a_chain_works_with_every_delivery() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    for delivery in ["sockmap", "poll"] {
        let (first, second) = (format!("first-{delivery}"), format!("second-{delivery}"));
        for (name, next, calls) in [(&second, None, ""), (&first, Some(&*second), &*second)] {
            let mut spec = chain_function(&server, name, next, calls);
            spec["annotations"]["nearpath.io/delivery"] = json!(delivery);
            server.deploy_ready(&spec).await;
        }
        wait_in_memory(&server, &first).await;
        eventually("first knows second", async || {
            call_traced(&server, &first).await.status() == 200
        })
        .await;
        let before = total_calls(&server, "nearpath_descriptors_delivered_total").await;
        let answer = call_traced(&server, &first).await;
        assert_eq!(
            (
                answer.status().as_u16(),
                path_of(&answer),
                answer.body().len()
            ),
            (200, "shm", 100),
            "{delivery}"
        );
        let carried = total_calls(&server, "nearpath_descriptors_delivered_total").await - before;
        assert!(
            if delivery == "sockmap" {
                carried >= 4.0
            } else {
                carried == 0.0
            },
            "{delivery}: {carried} carried"
        );
    }
    assert_eq!(
        total_calls(&server, "nearpath_descriptors_denied_total").await,
        0.0
    );
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
    let request = Request::builder()
        .uri("/metrics")
        .header("host", "localhost")
        .body(Full::default())
        .unwrap();
    let text = String::from_utf8(
        send_request(server.admin, request)
            .await
            .unwrap()
            .into_body()
            .to_vec(),
    )
    .unwrap();
    let ours = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(labels);
    let found: Vec<_> = text.lines().filter(ours).collect();
    let [line] = &found[..] else {
        panic!("{name}{{{labels}}}: {found:?}")
    };
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
async fn edges_memory_and_paths_are_listed() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&chain_function(&server, "second", None, ""))
        .await;
    server
        .deploy_ready(&chain_function(
            &server,
            "first",
            Some("second"),
            "second, third",
        ))
        .await;
    wait_in_memory(&server, "first").await;
    eventually("first knows second", async || {
        call_traced(&server, "first").await.status() == 200
    })
    .await;
    let edge = r#"caller="first.openfaas-fn",callee="second.openfaas-fn""#;
    let (before, outside) = (
        metric_value(&server, "nearpath_edge_requests_total", edge).await,
        call_traced(&server, "first"),
    );
    assert_eq!(outside.await.status(), 200);
    for _ in 1..20 {
        assert_eq!(call_traced(&server, "first").await.status(), 200);
    }
    assert_eq!(
        metric_value(&server, "nearpath_edge_requests_total", edge).await,
        before + 20.0
    );
    assert_eq!(
        metric_value(&server, "nearpath_edge_duration_seconds_count", edge).await,
        before + 20.0
    );
    assert_eq!(
        metric_value(&server, "nearpath_edge_failed_total", edge).await,
        0.0
    );
    assert_eq!(
        metric_value(&server, "nearpath_edge_in_flight", edge).await,
        0.0
    );
    let gateway = r#"caller="gateway",callee="first.openfaas-fn""#;
    assert!(metric_value(&server, "nearpath_edge_requests_total", gateway).await >= 20.0);
    let bound = r#"function="second.openfaas-fn""#;
    assert_eq!(
        metric_value(&server, "nearpath_shm_max_held_bytes", bound).await % f64::from(16 << 20),
        0.0
    );

    let edges = run_cli(&server, &["edges", "second"]);
    let edges: Vec<_> = edges
        .as_array()
        .unwrap()
        .iter()
        .map(|edge| edge["caller"].as_str().unwrap())
        .collect();
    assert!(edges.contains(&"first.openfaas-fn"), "{edges:?}");
    let memory = run_cli(&server, &["memory", "shop"]);
    assert_eq!(
        (&memory[0]["chain"], &memory[0]["pageBytes"]),
        (&json!("shop"), &json!(4096))
    );
    assert!(
        memory[0]["holders"].as_array().unwrap().len() == 3,
        "first, second and the gateway: {memory}"
    );

    let paths = run_cli(&server, &["paths", "shop"]);
    let report = |caller: &str, callee: &str| {
        let is = |path: &&Value| path["caller"] == caller && path["callee"] == callee;
        paths
            .as_array()
            .unwrap()
            .iter()
            .find(is)
            .unwrap_or_else(|| panic!("{caller} → {callee}: {paths}"))
            .clone()
    };
    assert_eq!(report("gateway", "first.openfaas-fn")["path"], "shm");
    assert_eq!(
        report("first.openfaas-fn", "second.openfaas-fn")["path"],
        "shm"
    );
    assert_eq!(
        report("first.openfaas-fn", "third.openfaas-fn")["reason"],
        "third.openfaas-fn is not deployed"
    );
    let mut unknown = std::process::Command::new(program("nearpath"));
    unknown.args([
        "paths",
        "nobody",
        "--gateway",
        &format!("http://{}", server.addr),
    ]);
    assert_eq!(unknown.output().unwrap().status.code(), Some(4));
}

/// Number of invocations in `nearpath ls`.
fn invocation_count(server: &TestServer, name: &str) -> u64 {
    let all = run_cli(server, &["ls"]);
    let mine = all
        .as_array()
        .unwrap()
        .iter()
        .find(|function| function["name"] == name);
    mine.unwrap_or_else(|| panic!("{name} is not there: {all}"))["invocationCount"]
        .as_f64()
        .unwrap() as u64
}

#[tokio::test]
async fn a_call_counts_where_it_is_received_over_every_path() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&chain_function(&server, "second", None, ""))
        .await;
    server
        .deploy_ready(&chain_function(&server, "first", Some("second"), "second"))
        .await;
    wait_in_memory(&server, "first").await;
    eventually("first knows second", async || {
        call_traced(&server, "first").await.status() == 200
    })
    .await;
    let before = (
        invocation_count(&server, "first"),
        invocation_count(&server, "second"),
    );
    for _ in 0..20 {
        assert_eq!(call_traced(&server, "first").await.status(), 200);
    }
    assert_eq!(
        invocation_count(&server, "first"),
        before.0 + 20,
        "from the gateway, through memory: once"
    );
    assert_eq!(
        invocation_count(&server, "second"),
        before.1 + 20,
        "from first alone"
    );
    let ended = r#"function_name="second.openfaas-fn",code="200""#;
    let started = r#"function_name="second.openfaas-fn""#;
    assert_eq!(
        metric_value(&server, "gateway_function_invocation_total", ended).await,
        (before.1 + 20) as f64
    );
    assert_eq!(
        metric_value(&server, "gateway_function_invocation_started", started).await,
        (before.1 + 20) as f64
    );

    let victim = server.instance_pids("second").await[0];
    kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
    let mut least = before.1 + 20;
    eventually("second is back", async || {
        let now = invocation_count(&server, "second");
        assert!(
            now >= least,
            "an instance that ends takes nothing from the sum: {now} after {least}"
        );
        least = now;
        call_traced(&server, "first").await.status() == 200 && now > before.1 + 20
    })
    .await;
    assert_eq!(call_traced(&server, "second").await.status(), 200);
    assert!(
        invocation_count(&server, "second") > least,
        "and from the gateway too"
    );
}

const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

/// Huge pages reserved by this test, released at its end.
struct ReservedHugePages(u64);

impl ReservedHugePages {
    fn add_pages(pages: u64) -> Option<Self> {
        let reserved = || {
            std::fs::read_to_string(HUGE_PAGES)
                .ok()?
                .trim()
                .parse::<u64>()
                .ok()
        };
        let before = reserved()?;
        std::fs::write(HUGE_PAGES, (before + pages).to_string()).ok()?;
        let reserve = Self(before);
        (reserved() == Some(before + pages)).then_some(reserve)
    }
}

impl Drop for ReservedHugePages {
    fn drop(&mut self) {
        let _ = std::fs::write(HUGE_PAGES, self.0.to_string());
    }
}

#[tokio::test]
async fn a_chain_gets_huge_pages_where_all_its_functions_ask_for_them() {
    nearpath_testkit::need_root!();
    let Some(_reserve) = ReservedHugePages::add_pages(32) else {
        nearpath_testkit::skip!("this machine reserves no huge pages for us (vm.nr_hugepages)");
    };
    let server = TestServer::start().await;
    let asking = |name: &str, next, calls| {
        let mut spec = chain_function(&server, name, next, calls);
        spec["annotations"]["nearpath.io/pages"] = json!("huge");
        spec
    };
    server.deploy_ready(&asking("second", None, "")).await;
    server
        .deploy_ready(&asking("first", Some("second"), "second"))
        .await;
    wait_in_memory(&server, "first").await;
    eventually("first knows second", async || {
        call_traced(&server, "first").await.status() == 200
    })
    .await;
    assert_eq!(
        run_cli(&server, &["memory", "shop"])[0]["pageBytes"],
        2 << 20
    );
    server
        .deploy_ready(&chain_function(&server, "careful", None, ""))
        .await;
    let answer = call_traced(&server, "careful").await;
    assert_eq!(
        (answer.status().as_u16(), path_of(&answer)),
        (200, "http; not_nearer=no_endpoint"),
        "it did not agree"
    );
    let mut wrong = chain_function(&server, "wrong", None, "");
    wrong["annotations"]["nearpath.io/pages"] = json!("large");
    let refused = server
        .send_request(Method::POST, "/system/functions", wrong.to_string())
        .await;
    assert_eq!(refused.status(), 400);
}

/// Builds the SDK's example as a user would: a static program without downloads.
async fn go_function(folder: &Path) -> Result<(), String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/go");
    let mut build = tokio::process::Command::new("go");
    build
        .args(["build", "-o"])
        .arg(folder.join("price"))
        .arg("./examples/price")
        .current_dir(source);
    let built = build
        .env("CGO_ENABLED", "0")
        .kill_on_drop(true)
        .output()
        .await;
    let built = built.map_err(|error| format!("go cannot be run: {error}"))?;
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    Ok(())
}

#[tokio::test]
async fn a_go_function_is_called_and_calls_through_memory() {
    nearpath_testkit::need_root!();
    let folder = tempfile::tempdir().unwrap();
    if let Err(why) = go_function(folder.path()).await {
        nearpath_testkit::skip!("{why}");
    }
    let server = TestServer::start().await;
    server
        .deploy_ready(&chain_function(&server, "currency", None, ""))
        .await;
    let mut price = chain_function(&server, "price", None, "currency");
    price["image"] = json!(format!("file://{}", folder.path().display()));
    price["envProcess"] = json!("./price");
    price["envVars"]["PORT"] = json!("5000");
    server.deploy_ready(&price).await;
    wait_in_memory(&server, "price").await;
    eventually("price knows currency", async || {
        call_traced(&server, "price").await.status() == 200
    })
    .await;
    let report = async |name: &str, what: &str| {
        let logs = server
            .send_request(
                Method::GET,
                &format!("/system/logs?name={name}&tail=100"),
                "",
            )
            .await;
        String::from_utf8_lossy(logs.body()).contains(what)
    };
    eventually("its own call went the same way", async || {
        report("price", "100 bytes came over shm").await
    })
    .await;
    for spec in [
        &mut chain_function(&server, "currency", None, ""),
        &mut price,
    ] {
        spec["annotations"]["nearpath.io/delivery"] = json!("sockmap");
        spec["service"] = json!(format!("{}-sockmap", spec["service"].as_str().unwrap()));
        server.deploy_ready(spec).await;
    }
    wait_in_memory(&server, "currency-sockmap").await;
    // Its library is refused there: the watchdog handles its calls, and the response reports it to
    // the library.
    wait_in_memory(&server, "price-sockmap").await;
    eventually("its call went through memory", async || {
        report("price-sockmap", "100 bytes came over shm").await
    })
    .await;
}
