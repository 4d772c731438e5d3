//! Every subcommand once, as a user calls it. These tests check no speed.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nearpath_testkit::{eventually, free_addr, skip};
use serde_json::Value;

/// A server that is killed at the end of its test.
struct TestProcess(Child);

impl Drop for TestProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn bench_command() -> Command {
    let mut command = Command::new("timeout"); // a hang is a failure
    command
        .args(["60", env!("CARGO_BIN_EXE_nearpath-bench")])
        .stdin(Stdio::null());
    command
}

async fn start_server(addr: SocketAddr, args: &[&str]) -> TestProcess {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath-bench"));
    let server = TestProcess(
        command
            .args(args)
            .args(["--listen", &addr.to_string()])
            .spawn()
            .expect("it starts"),
    );
    eventually("it listens", async || {
        tokio::net::TcpStream::connect(addr).await.is_ok()
    })
    .await;
    server
}

fn run_load(addr: SocketAddr, args: &[&str]) -> Output {
    let url = format!("http://{addr}/function/echo");
    bench_command()
        .args([
            "load",
            "--json",
            "--duration",
            "0.3",
            "--warm-up",
            "0",
            "--url",
            &url,
        ])
        .args(args)
        .output()
        .expect("timeout(1) is there")
}

fn parse_json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[tokio::test]
async fn load_through_the_gateway() {
    let (handler, gateway) = (free_addr(), free_addr());
    let _handler = start_server(handler, &["handler"]).await;
    let gateway_process =
        start_server(gateway, &["gateway", "--fixed", &format!("echo={handler}")]).await;
    let pid = gateway_process.0.id().to_string();
    for args in [
        &["--connections", "4", "--pid", &pid][..],
        &["--connections", "2", "--new-connection"],
        &["--rate", "200"],
        &["--rate", "100", "--new-connection"],
    ] {
        let output = run_load(gateway, args);
        let report = parse_json(&output);
        assert!(
            output.status.success() && report["n"].as_u64() > Some(0),
            "{args:?}: {report}"
        );
        assert_eq!(report["failed"], 0, "{args:?}: {report}");
    }
}

#[tokio::test]
async fn an_open_loop_sends_all_due_requests() {
    let addr = free_addr();
    let _handler = start_server(addr, &["handler"]).await;
    assert_eq!(
        parse_json(&run_load(addr, &["--rate", "200"]))["n"],
        60,
        "200 a second for 0.3 s"
    );
}

#[test]
fn failures_are_counted_by_kind_and_set_the_exit_code() {
    let output = run_load(free_addr(), &["--rate", "50"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(parse_json(&output)["failures"]["no connection"], 15);
}

#[test]
fn a_wrong_url_is_an_error() {
    let output = bench_command()
        .args(["load", "--url", "https://example.com/"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && text.contains("http://HOST:PORT/PATH"),
        "{text}"
    );
}

#[tokio::test]
async fn shop_users_report_a_wrong_response() {
    let addr = free_addr();
    let _handler = start_server(addr, &["handler"]).await;
    let url = format!("http://{addr}/function/frontend");
    let args = [
        "load-boutique",
        "--duration",
        "0.2",
        "--users",
        "2",
        "--json",
        "--url",
        &url,
    ];
    let output = bench_command().args(args).output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(1),
        "the handler answers 200, but it is not a shop"
    );
    assert_eq!(
        parse_json(&output)["index"]["failures"]["unexpected body"],
        2
    );
}

#[test]
fn edge_writes_its_file() {
    if !["/usr/sbin/nginx", "/usr/bin/nginx"]
        .iter()
        .any(|path| Path::new(path).exists())
    {
        skip!("needs nginx");
    }
    let folder = tempfile::tempdir().unwrap();
    let args = [
        "edge",
        "--rounds",
        "1",
        "--duration",
        "0.2",
        "--warm-up",
        "0.05",
        "--connections",
        "2,32",
    ];
    let output = bench_command()
        .args(args)
        .env("NEARPATH_BENCH_RESULTS", folder.path())
        .output()
        .unwrap();
    let text = std::fs::read(folder.path().join("edge.json"))
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let report: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(
        report["rows"].as_array().map(Vec::len),
        Some(8),
        "two ways, two loads, two variants: {report}"
    );
    assert_eq!(
        report["ratios"].as_array().map(Vec::len),
        Some(4),
        "{report}"
    );
    assert!(
        report["rows"]
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["failed"] == 0),
        "{report}"
    );
}

#[test]
fn ring_writes_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let args = [
        "ring",
        "--rounds",
        "1",
        "--duration",
        "0.02",
        "--warm-up",
        "0.01",
        "--in-flight",
        "2",
    ];
    let output = bench_command()
        .args(args)
        .env("NEARPATH_BENCH_RESULTS", folder.path())
        .output()
        .unwrap();
    let text = std::fs::read(folder.path().join("ring.json"))
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let report: Value = serde_json::from_slice(&text).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let variants = if rows.iter().any(|row| row["variant"] == "sockmap") {
        5
    } else {
        4
    };
    assert!(
        [2, 4].contains(&(rows.len() / variants)),
        "two circles, one place or two: {report}"
    );
    assert!(
        rows.iter().all(|row| row["n"].as_u64() > Some(0)),
        "{report}"
    );
}

/// Runs a comparison of `nearpath up` shortly, and returns the rows of its file.
fn run_shortly(name: &str, args: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let output = bench_command()
        .args([name, "--rounds", "1", "--duration", "0.2"])
        .args(args)
        .env("PATH", path_with_watchdog())
        .env("NEARPATH_BENCH_RESULTS", folder.path())
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .unwrap();
    let text = std::fs::read(folder.path().join(format!("{name}.json")))
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let report: Value = serde_json::from_slice(&text).unwrap();
    report["rows"].as_array().unwrap().clone()
}

/// Returns the first of these programs that is missing.
fn missing_program<'a>(programs: &[&'a str]) -> Option<&'a str> {
    let path = format!("{}:/usr/sbin", path_with_watchdog());
    let is_missing =
        |name: &&&str| !std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    programs.iter().find(is_missing).copied()
}

fn is_answered(row: &Value) -> bool {
    row["failed"] == 0 && row["n"].as_u64() > Some(0)
}

#[test]
fn chain_writes_its_file() {
    nearpath_testkit::need_root!();
    if let Some(program) = missing_program(&["nginx", "go"]) {
        skip!("needs {program}");
    }
    let args = ["--warm-up", "0.05", "--connections", "2", "--lengths", "2"];
    let rows = run_shortly("chain", &args);
    assert!(
        rows.len() == 6 && rows.iter().all(is_answered),
        "two programs, three variants: {rows:?}"
    );
}

#[test]
fn default_writes_its_file() {
    nearpath_testkit::need_root!();
    if let Some(program) = missing_program(&["nginx", "cc", "python3"]) {
        skip!("needs {program}");
    }
    let args = [
        "--warm-up",
        "0.05",
        "--settle",
        "0.05",
        "--connections",
        "2",
        "--handlers",
        "c,python",
    ];
    let rows = run_shortly("default", &args);
    assert!(
        // Envoy and of-watchdog may be missing.
        (20..=28).contains(&rows.len()) && rows.iter().all(is_answered),
        "two handlers, kept and new connections, five to seven variants: {rows:?}"
    );
}

#[test]
fn idle_measures_every_kind_of_function() {
    nearpath_testkit::need_root!();
    if let Some(program) = missing_program(&["nginx", "go"]) {
        skip!("needs {program}");
    }
    let args = ["--settle", "0", "--chains", "1", "--length", "2"];
    // An idle instance has no requests: `n` counts whole seconds of instances.
    let rows = run_shortly("idle", &args);
    assert_eq!(rows.len(), 4, "two programs, two variants: {rows:?}");
}

/// Checks that calls reach their functions on other machines, and no speed.
#[test]
fn nodes_writes_its_file() {
    nearpath_testkit::need_root!();
    if let Some(program) = missing_program(&["nginx", "go", "cc", "nearpath"]) {
        skip!("needs {program}");
    }
    let folder = tempfile::tempdir().expect("room for a folder");
    let output = Command::new("/usr/bin/timeout") // a hang is a failure
        .args(["300", env!("CARGO_BIN_EXE_nearpath-bench"), "nodes"])
        .args(["--rows", "calls,ready,scale", "--delays", "0.5"])
        .args(["--rounds", "1", "--duration", "0.2", "--warm-up", "0.05"])
        .args(["--settle", "0.05", "--connections", "2", "--starts", "2"])
        .args(["--functions", "20", "--deployed", "0"])
        .env("PATH", path_with_watchdog())
        .env("NEARPATH_BENCH_RESULTS", folder.path())
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .stdin(Stdio::null())
        .output()
        .expect("timeout(1) is there");
    let text = std::fs::read(folder.path().join("nodes.json"))
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let report: Value = serde_json::from_slice(&text).expect("a report");
    let rows = report["rows"].as_array().expect("rows");
    assert!(
        rows.len() == 14 && rows.iter().all(is_answered),
        "two handlers with six rows each, ready, scale: {report}"
    );
    let named = |part: &str| {
        let figures = report["ratios"].as_array().expect("ratios").iter();
        let names = figures.filter_map(|one| one["name"].as_str());
        names.filter(|name| name.contains(part)).count()
    };
    assert_eq!(
        (named("CPU of both"), named("until all"), named("change")),
        (4, 2, 1),
        "{report}"
    );
}

/// Checks that functions reach each other by name in every row of one machine, and no speed.
#[test]
fn direct_writes_its_file() {
    nearpath_testkit::need_root!();
    if let Some(program) = missing_program(&["redis-server", "go", "cc", "nearpath"]) {
        skip!("needs {program}");
    }
    let folder = tempfile::tempdir().expect("room for a folder");
    let output = Command::new("/usr/bin/timeout") // a hang is a failure
        .args(["300", env!("CARGO_BIN_EXE_nearpath-bench"), "direct"])
        .args(["--rows", "connection,socket,redis,start,burst"])
        .args(["--rounds", "1", "--duration", "0.2", "--warm-up", "0.05"])
        .args(["--settle", "0.05", "--connections", "2", "--starts", "1"])
        .env("PATH", path_with_watchdog())
        .env("NEARPATH_BENCH_RESULTS", folder.path())
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .stdin(Stdio::null())
        .output()
        .expect("timeout(1) is there");
    let text = std::fs::read(folder.path().join("direct.json"))
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let report: Value = serde_json::from_slice(&text).expect("a report");
    let rows = report["rows"].as_array().expect("rows");
    // HTTP 4, sockets 3 * 3 and a denied one, Redis 2 * 3 and two from zero, starts 2, one burst
    assert!(rows.len() == 25 && rows.iter().all(is_answered), "{report}");
    let figures = report["ratios"].as_array().expect("ratios").iter();
    let failed = figures.filter(|one| {
        let name = one["name"].as_str().unwrap_or_default();
        name.contains("failed first calls") || name.contains("without an answer")
    });
    let failed: Vec<_> = failed.map(|one| one["value"].as_f64()).collect();
    assert_eq!(failed, [Some(0.0), Some(0.0)], "{report}");
}

/// Runs `quic` and returns its file and its output.
fn run_quic(args: &[&str], path: &str) -> (Value, String) {
    let folder = tempfile::tempdir().expect("room for a folder");
    let mut command = Command::new("/usr/bin/timeout"); // a hang is a failure
    command.args([
        "300",
        env!("CARGO_BIN_EXE_nearpath-bench"),
        "quic",
        "--rounds",
        "1",
        "--duration",
        "0",
        "--least",
        "2",
    ]);
    command
        .args(args)
        .env("PATH", path)
        .env("NEARPATH_BENCH_RESULTS", folder.path())
        .stdin(Stdio::null());
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let output = command.output().expect("timeout(1) is there");
    let text = std::fs::read(folder.path().join("quic.json"))
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (
        serde_json::from_slice(&text).expect("a report"),
        String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

fn path_with_watchdog() -> String {
    let programs = nearpath_testkit::program("nearpath-watchdog");
    let folder = programs
        .parent()
        .expect("a program is in a folder")
        .display();
    format!("{folder}:{}", std::env::var("PATH").unwrap_or_default())
}

#[test]
fn quic_writes_its_file() {
    nearpath_testkit::need_root!();
    let few = [
        "--delays",
        "loopback,0.5",
        "--starts",
        "1",
        "--longest",
        "2",
        "--mints",
        "3",
        "--apps",
        "none",
    ];
    let (report, _) = run_quic(&few, &path_with_watchdog());
    let rows = report["rows"].as_array().unwrap();
    assert!(
        rows.iter()
            .all(|row| row["failed"] == 0 && row["n"].as_u64() > Some(0)),
        "{report}"
    );
    let early = |row: &&Value| row["variant"] == "quic 0-rtt";
    assert_eq!(
        rows.iter().filter(early).count(),
        2 * 4 + 2,
        "two places, four cases each, two chains: {report}"
    );
    assert!(report["ratios"].as_array().unwrap().len() > 10, "{report}");
}

/// Fails if an application's responses are wrong. An unavailable application is a skip.
fn run_quic_apps(case: &str, apps: &str, (cases, variants): (usize, &str)) {
    let few = ["--case", case, "--apps", apps, "--variants", variants];
    let (report, table) = run_quic(&few, &path_with_watchdog());
    if let Some(line) = table.lines().find(|line| line.starts_with("omitted: ")) {
        skip!("{line}");
    }
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(
        rows.len(),
        cases * (variants.split(';').count() + 1),
        "each, and one without a network: {report}"
    );
    assert!(
        rows.iter().all(|row| row["failed"] == 0 && row["n"] == 2),
        "{report}"
    );
    assert_eq!(
        table
            .matches("the network's part in ms: quic 0-rtt ")
            .count(),
        cases,
        "{table}"
    );
}

#[test]
fn quic_measures_certificate_info_and_the_image_resizer() {
    nearpath_testkit::need_root!();
    run_quic_apps(
        "app",
        "certinfo,resizer",
        (2, "quic 0-rtt;quic pre-dialled"),
    );
}

#[test]
fn quic_measures_the_chains_of_the_retailer() {
    nearpath_testkit::need_root!();
    let gateway = "tls 1.2, server certificate only, via gateway;quic 0-rtt, via gateway";
    run_quic_apps(
        "app retail chain",
        "retail",
        (3, &format!("quic 0-rtt;quic pre-dialled;{gateway}")),
    );
}

#[test]
fn an_unavailable_application_is_omitted_with_the_reason() {
    let (report, table) = run_quic(&["--case", "app"], "/nowhere");
    assert_eq!(report["rows"].as_array().map(Vec::len), Some(0), "{report}");
    for name in ["certinfo", "resizer", "retail"] {
        assert!(
            table.contains(&format!(
                "omitted: app {name}, 0.5 ms: cannot start python3"
            )),
            "{table}"
        );
    }
}

#[test]
fn commands_report_a_missing_nearpath() {
    for command in [
        "start", "chaos", "idle", "motion", "parking", "audit", "boutique",
    ] {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let output = Command::new(env!("CARGO_BIN_EXE_nearpath-bench"))
            .arg(command)
            .current_dir(root)
            .env("PATH", "/nowhere")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && text.contains("cannot start nearpath"),
            "{text}"
        );
    }
}

/// Checks no speed, but that pairs of the matrix are direct or relayed as theory permits.
#[test]
fn punch_writes_its_file() {
    nearpath_testkit::need_nat!();
    let folder = tempfile::tempdir().expect("room for a folder");
    let output = Command::new("/usr/bin/timeout")
        .args([
            "300",
            env!("CARGO_BIN_EXE_nearpath-bench"),
            "punch",
            "--quick",
            "--json",
            "--rounds",
            "1",
        ])
        .args([
            "--megabytes",
            "3",
            "--sessions",
            "1",
            "--rtts",
            "2:4",
            "--workers",
            "3",
            "--seconds",
            "0.3",
        ])
        .args(["--chain-cap", "200", "--tries", "1", "--at-once", "16"])
        .env("NEARPATH_BENCH_RESULTS", folder.path())
        .env("PYTHONPATH", "/nowhere")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .stdin(Stdio::null())
        .output()
        .expect("timeout(1) is there");
    let report = parse_json(&output);
    let rows = report["rows"].as_array().expect("rows");
    assert!(
        rows.iter()
            .all(|row| row["failed"] == 0 && row["n"].as_u64() > Some(0)),
        "{report}"
    );
    let of = |begin: &str| {
        rows.iter()
            .filter(|row| row["case"].as_str().unwrap_or_default().starts_with(begin))
            .count()
    };
    assert_eq!(
        (
            of("throughput"),
            of("first byte"),
            of("chain"),
            of("matrix")
        ),
        (10, 14, 12, 132),
        "{report}"
    );
    let matrix = report["ratios"]
        .as_array()
        .expect("ratios")
        .iter()
        .filter(|one| {
            let name = one["name"].as_str().unwrap_or_default();
            name.starts_with("matrix")
                && one["value"] == one["goal"].as_f64().map_or(0.0, f64::round)
        });
    assert_eq!(matrix.count(), 4, "{report}");
}
