//! Several nodes on one machine: any of them shows all of them.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use http::StatusCode;
use nearpath_testkit::{eventually, free_addr, program};
use rustix::process::Signal;
use serde_json::Value;

use crate::test_server::TestServer;

const NODES: [&str; 3] = ["a", "b", "c"];

/// An application whose function `front` runs on `a` and `b`, and `cart` on `b` alone. The node `c`
/// is in the list.
struct Application {
    folder: tempfile::TempDir,
    ports: [SocketAddr; 3],
}

/// Standard output and standard error of a command that succeeded.
struct CommandOutput {
    out: String,
    err: String,
}

impl Application {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("nearpath-test-").tempdir();
        let application = Self {
            folder: folder.unwrap(),
            ports: NODES.map(|_| free_addr()),
        };
        application.write_source();
        let certificates = application.path("ca");
        let certificates = certificates.to_str().unwrap();
        run_program(&["ca", "init", "--dir", certificates]);
        let issue = ["ca", "issue", "--dir", certificates];
        run_program(&[&issue[..], &NODES].concat());
        application
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write_source(&self) {
        let rows = NODES.iter().zip(self.ports);
        let rows = rows.map(|(name, addr)| format!("  {name}: {{address: \"{addr}\"}}\n"));
        let nodes = format!("nodes:\n{}", rows.collect::<String>());
        for name in ["front", "cart"] {
            let handler = self.path("source").join(name);
            fs::create_dir_all(&handler).unwrap();
            fs::write(
                handler.join("run.sh"),
                format!("echo {name} ran >&2; exec cat\n"),
            )
            .unwrap();
        }
        let stack = "functions:\n  \
            front: {handler: ./front, fprocess: /bin/sh run.sh, nodes: [a, b]}\n  \
            cart: {handler: ./cart, fprocess: /bin/sh run.sh, nodes: [b]}\n\
            chains:\n  shop:\n    edges: {front: [cart]}\n";
        fs::write(self.path("source/nodes.yml"), nodes).unwrap();
        fs::write(self.path("source/shop.yml"), stack).unwrap();
    }

    async fn start(&self, name: &str) -> TestServer {
        let at = NODES.iter().position(|one| *one == name).unwrap();
        let (source, certificates) = (self.path("source"), self.path("ca/nodes").join(name));
        let (listen, log) = (self.ports[at].to_string(), self.access_log(name));
        let options = [
            ["--name", name],
            ["--source", source.to_str().unwrap()],
            ["--node-certificates", certificates.to_str().unwrap()],
            ["--node-listen", &listen],
            ["--access-log", log.to_str().unwrap()],
        ];
        TestServer::start_member(&self.path(&format!("data-{name}")), &options.concat()).await
    }

    fn access_log(&self, name: &str) -> PathBuf {
        self.path(&format!("access-{name}.log"))
    }

    /// Calls of functions in a node's access log.
    fn logged_calls(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.access_log(name)).unwrap();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        lines
            .filter(|line: &Value| line["function"] != "")
            .collect()
    }
}

fn run_program(args: &[&str]) -> Output {
    let output = Command::new(program("nearpath"))
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    output
}

/// Runs a command against a node.
fn show(server: &TestServer, args: &[&str]) -> CommandOutput {
    let gateway = format!("http://{}", server.addr);
    let output = run_program(&[args, &["--gateway", &gateway]].concat());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    CommandOutput {
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

fn show_json(server: &TestServer, args: &[&str]) -> Value {
    let shown = show(server, &[args, &["--json"]].concat());
    serde_json::from_str(&shown.out).unwrap_or_else(|error| panic!("{error}: {}", shown.out))
}

/// Returns the row of a JSON list whose field has a value.
fn row<'a>(rows: &'a Value, key: &str, value: &str) -> &'a Value {
    let mut found = rows.as_array().unwrap().iter();
    let found = found.find(|row| row[key] == value);
    found.unwrap_or_else(|| panic!("{key} {value} in {rows}"))
}

async fn until_ready(server: &TestServer, instances: u64) {
    eventually("all instances are ready", async || {
        let list = show_json(server, &["ls"]);
        let ready = list.as_array().unwrap().iter();
        let ready = ready.filter_map(|one| one["availableReplicas"].as_u64());
        ready.sum::<u64>() == instances
    })
    .await;
}

async fn until_state(server: &TestServer, node: &str, state: &str) {
    eventually(&format!("{node} is {state}"), async || {
        // The list is empty before the first reading of the folder.
        let rows = show_json(server, &["nodes"]);
        let mut rows = rows.as_array().unwrap().iter();
        rows.any(|row| row["name"] == node && row["state"] == state)
    })
    .await;
}

/// A command that runs until this is dropped, and its outputs in files.
struct RunningCommand {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl RunningCommand {
    fn start(folder: &Path, server: &TestServer, args: &[&str]) -> Self {
        let (out, err) = (folder.join("out"), folder.join("err"));
        let to = |path: &Path| Stdio::from(fs::File::create(path).unwrap());
        let child = Command::new(program("nearpath"))
            .args(args)
            .args(["--gateway", &format!("http://{}", server.addr)])
            .stdout(to(&out))
            .stderr(to(&err))
            .spawn()
            .unwrap();
        Self { child, out, err }
    }

    async fn until(&self, file: &Path, part: &str) {
        eventually(part, async || {
            fs::read_to_string(file).unwrap().contains(part)
        })
        .await;
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn any_node_shows_all_nodes() {
    nearpath_testkit::need_root!();
    let application = Application::new();
    let (a, b) = (application.start("a").await, application.start("b").await);
    until_state(&a, "b", "up").await;
    until_ready(&a, 3).await;
    for _ in 0..3 {
        let answer = a.call_function("cart", "hello").await;
        assert_eq!(
            (answer.status(), &answer.body()[..]),
            (StatusCode::OK, &b"hello"[..])
        );
    }
    check_nodes(&a);
    eventually("both gateways have counted", async || {
        row(&show_json(&b, &["ls"]), "name", "cart")["invocationCount"] == 3.0
    })
    .await;
    check_list(&b);
    check_instances(&a);
    check_paths(&a);
    for query in [&["edges"][..], &["memory"]] {
        let shown = show(&a, query);
        let rows: Vec<&str> = shown.out.lines().skip(1).collect();
        for node in ["a  ", "b  "] {
            assert!(
                rows.iter().any(|row| row.starts_with(node)),
                "{node}: {}",
                shown.out
            );
        }
        assert!(
            shown.err.starts_with("nearpath: node c is missing: "),
            "{}",
            shown.err
        );
    }
    check_access_logs(&application);
}

fn check_nodes(a: &TestServer) {
    let nodes = show_json(a, &["nodes"]);
    let (own, other) = (row(&nodes, "name", "a"), row(&nodes, "name", "b"));
    assert_eq!(
        (&own["state"], &other["state"]),
        (&"this".into(), &"up".into())
    );
    assert_eq!(
        (
            own["readyInstances"].as_u64(),
            other["readyInstances"].as_u64()
        ),
        (Some(1), Some(2))
    );
    assert!(other["source"]["appliedAt"].is_string(), "{nodes}");
    assert!(
        other["roundTripSeconds"]
            .as_f64()
            .is_some_and(|time| time > 0.0),
        "{nodes}"
    );
    let down = row(&nodes, "name", "c");
    assert!(
        down["cause"].is_string() && down["source"].is_null(),
        "{nodes}"
    );
}

/// Each call of a client counts once, although two gateways have seen it.
fn check_list(b: &TestServer) {
    let list = show_json(b, &["ls"]);
    let cart = row(&list, "name", "cart");
    assert_eq!(
        (&cart["replicas"], &cart["availableReplicas"]),
        (&1.into(), &1.into())
    );
    let counted = |node| row(&cart["nodes"], "node", node)["invocationCount"].as_f64();
    assert_eq!(
        (counted("a"), counted("b")),
        (Some(3.0), Some(0.0)),
        "{cart}"
    );
    assert_eq!(cart["missingNodes"][0]["node"], "c");
    let front = row(&list, "name", "front");
    assert_eq!(
        (&front["replicas"], &front["availableReplicas"]),
        (&2.into(), &2.into())
    );
    let table = show(b, &["ls"]);
    assert!(table.out.contains("a 1/1, b 1/1, c ?"), "{}", table.out);
}

fn check_instances(a: &TestServer) {
    let front = show_json(a, &["describe", "front"]);
    let ids: Vec<_> = front["instances"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["id"].as_str().unwrap())
        .collect();
    assert!(
        ids[0].starts_with("a/i") && ids[1].starts_with("b/i"),
        "{ids:?}"
    );
    let log = show(a, &["logs", "cart"]);
    assert!(
        log.out.contains(" b/i") && log.out.contains("cart ran"),
        "{}",
        log.out
    );
}

/// The row of a call to another node has the path there and the one inside.
fn check_paths(a: &TestServer) {
    let paths = show_json(a, &["paths", "cart"]);
    let rows = paths.as_array().unwrap();
    let across = rows
        .iter()
        .find(|row| row["calleeNode"] == "b" && row["caller"] == "gateway");
    let across = across.unwrap_or_else(|| panic!("{paths}"));
    assert_eq!(across["node"], "a");
    let is_by_node = across["path"] == "quic" || across["obstacle"] == "kept_tls";
    assert!(is_by_node, "{across}");
    assert!(
        across["calleeInstance"]
            .as_str()
            .unwrap()
            .starts_with("b/i"),
        "{across}"
    );
    assert!(across["innerPath"].is_string(), "{across}");
    let from_front = rows
        .iter()
        .find(|row| row["caller"] == "front.openfaas-fn" && row["node"] == "a");
    let from_front = from_front.unwrap_or_else(|| panic!("{paths}"));
    assert!(
        from_front["callerInstance"]
            .as_str()
            .unwrap()
            .starts_with("a/i"),
        "{from_front}"
    );
    assert_eq!(
        rows.last().unwrap()["node"],
        "c",
        "the node that is missing"
    );
}

fn check_access_logs(application: &Application) {
    // Requests for states are logged; pings come twice a second.
    let log = fs::read_to_string(application.access_log("b")).unwrap();
    assert!(!log.contains("/node/v1/ping"), "{log}");
    let (at_a, at_b) = (application.logged_calls("a"), application.logged_calls("b"));
    assert_eq!((at_a.len(), at_b.len()), (3, 3));
    assert!(
        at_a.iter()
            .all(|line| line["node"] == "b" && line["from_node"].is_null()),
        "{at_a:?}"
    );
    let is_from_a = |line: &Value| {
        line["from_node"] == "a"
            && line["instance"]
                .as_str()
                .is_some_and(|id| id.starts_with("b/i"))
    };
    assert!(at_b.iter().all(is_from_a), "{at_b:?}");
    let call_ids = |lines: &[Value]| {
        let ids = lines
            .iter()
            .map(|line| line["call_id"].as_str().unwrap().to_owned());
        ids.collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(call_ids(&at_a), call_ids(&at_b));
}

#[tokio::test]
async fn a_node_that_goes_down_is_named_and_the_others_go_on() {
    nearpath_testkit::need_root!();
    let application = Application::new();
    let (a, mut b) = (application.start("a").await, application.start("b").await);
    until_state(&a, "b", "up").await;
    until_ready(&a, 3).await;
    let log = RunningCommand::start(
        application.folder.path(),
        &a,
        &["logs", "front", "--follow"],
    );
    b.call_function("front", "").await;
    log.until(&log.out, " b/i").await;
    b.end_with(Signal::KILL);
    log.until(&log.err, "nearpath: node b is missing: ").await;
    until_state(&a, "b", "down").await;
    a.call_function("front", "").await;
    let ran_here = async || {
        let text = fs::read_to_string(&log.out).unwrap();
        let mut lines = text.lines();
        lines.any(|line| line.contains(" a/i") && line.ends_with("front ran"))
    };
    eventually("the log of `a` goes on", ran_here).await;
    let list = show(&a, &["ls"]);
    assert!(
        list.out.contains("0/1 failing") && list.out.contains("1/2 failing"),
        "{}",
        list.out
    );
    assert!(
        list.err.contains("nearpath: node b is missing: "),
        "{}",
        list.err
    );
    let paths = show(&a, &["paths", "cart"]);
    let reason = "cart.openfaas-fn runs on b, and no such node takes calls";
    assert!(paths.out.contains(reason), "{}", paths.out);
}

#[tokio::test]
async fn a_node_without_certificates_shows_itself() {
    let application = Application::new();
    let source = application.path("source");
    let options = ["--name", "a", "--source", source.to_str().unwrap()];
    let a = TestServer::start_member(&application.path("data"), &options).await;
    until_ready(&a, 1).await;
    let list = show(&a, &["ls"]);
    assert_eq!(list.err, "");
    let nodes = show_json(&a, &["nodes"]);
    let other = row(&nodes, "name", "b");
    assert_eq!(other["state"], "down");
    let cause = other["cause"].as_str().unwrap();
    assert!(cause.contains("--node-certificates"), "{cause}");
    let front = show_json(&a, &["describe", "front"]);
    let id = front["instances"][0]["id"].as_str().unwrap();
    assert!(id.starts_with("a/i"), "{id}");
}
