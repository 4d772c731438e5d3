//! Outputs about several nodes, with and without a node that is down.

use serde_json::{Value, json};

use crate::fake_gateway::{FakeGateway, function_status, with_missing_nodes};

const MISSING: &str = "c=no%20answer%20within%202s";
const WARNING: &str = "nearpath: node c is missing: no answer within 2s\n";

fn status_of_two() -> Value {
    let mut status = function_status("cart", 3, 3, None);
    status["nodes"] = json!([
        { "node": "a", "replicas": 2, "availableReplicas": 2, "invocationCount": 5.0, "revision": 1 },
        { "node": "b", "replicas": 1, "availableReplicas": 1, "invocationCount": 2.0, "revision": 4 },
    ]);
    status
}

fn status_without_c() -> Value {
    let mut status = status_of_two();
    status["missingNodes"] = json!([{ "node": "c", "cause": "no answer within 2s" }]);
    status
}

#[tokio::test]
async fn nodes_are_a_table_or_json() {
    let rows = json!([
        { "name": "a", "address": "a:8444", "state": "this", "version": "0.1.0", "functions": 2,
          "readyInstances": 3, "source": { "folder": "/srv/app", "revision": 7, "fault": "stack.yml:3: no" } },
        { "name": "c", "state": "down", "cause": "no ping was answered in time, for 5s",
          "functions": 0, "readyInstances": 0 },
    ]);
    let body = with_missing_nodes(rows, MISSING);
    let fake = FakeGateway::start(move |_, _| (200, body.clone())).await;
    let output = fake.run(&["nodes"]).await.expect(0);
    assert!(
        output.out.contains("faulty source: stack.yml:3: no\n"),
        "{}",
        output.out
    );
    assert!(
        output
            .out
            .ends_with("no ping was answered in time, for 5s\n"),
        "{}",
        output.out
    );
    assert_eq!(output.err, WARNING);
    let json = fake.run(&["nodes", "--json"]).await.expect(0).json();
    assert_eq!(json[1]["state"], "down");
    assert_eq!(fake.request_lines()[0], "GET /system/nodes");
}

#[tokio::test]
async fn ls_shows_the_share_of_each_node() {
    let all = FakeGateway::start(|_, _| (200, json!([status_of_two()]))).await;
    let output = all.run(&["ls"]).await.expect(0);
    assert!(output.out.ends_with("a 2/2, b 1/1\n"), "{}", output.out);
    assert_eq!(output.err, "");
    let body = with_missing_nodes(json!([status_without_c()]), MISSING);
    let some = FakeGateway::start(move |_, _| (200, body.clone())).await;
    let output = some.run(&["ls"]).await.expect(0);
    assert!(
        output.out.ends_with("a 2/2, b 1/1, c ?\n"),
        "{}",
        output.out
    );
    assert_eq!(output.err, WARNING);
    let json = some.run(&["ls", "--json"]).await.expect(0).json();
    assert_eq!(json[0]["missingNodes"][0]["node"], "c");
}

#[tokio::test]
async fn describe_has_a_row_for_each_node() {
    let fake = FakeGateway::start(|_, _| (200, status_without_c())).await;
    let output = fake.run(&["describe", "cart"]).await.expect(0);
    for row in [
        "a     2/2              5         1",
        "b     1/1              2         4",
    ] {
        assert!(output.out.contains(row), "{row}\n{}", output.out);
    }
    assert!(
        output.out.contains("no answer: no answer within 2s\n"),
        "{}",
        output.out
    );
    assert_eq!(output.err, WARNING);
}

#[tokio::test]
async fn reports_name_their_nodes() {
    let row = json!({ "node": "a", "caller": "gateway", "callee": "cart.openfaas-fn",
        "calleeInstance": "b/i1", "calleeNode": "b", "path": "quic", "obstacle": "other_node",
        "reason": "the instance is on another machine", "innerPath": "http" });
    let body = with_missing_nodes(json!([row]), MISSING);
    let fake = FakeGateway::start(move |_, _| (200, body.clone())).await;
    let output = fake.run(&["paths"]).await.expect(0);
    let wanted = "a     gateway  -         cart.openfaas-fn  b/i1      quic, then http  \
                  the instance is on another machine\n";
    assert!(output.out.ends_with(wanted), "{}", output.out);
    assert_eq!(output.err, WARNING);
    let json = fake.run(&["paths", "--json"]).await.expect(0).json();
    assert_eq!(json[0]["innerPath"], "http");
    assert_eq!(
        json[1],
        json!({ "node": "c", "error": "no answer within 2s" })
    );
}

#[tokio::test]
async fn a_log_names_missing_nodes_on_standard_error() {
    let line = |instance: &str, text: &str| {
        json!({ "name": "web", "namespace": "openfaas-fn", "instance": instance,
            "timestamp": "2026-01-31T08:09:10Z", "text": text, "node": "b" })
    };
    let mut gone = line(
        "c",
        "nearpath: lines of node c are missing: no answer within 2s",
    );
    gone["node"] = "c".into();
    gone["error"] = "no answer within 2s".into();
    let lines = format!("{}\n{gone}\n", line("b/i1", "hello"));
    let fake = FakeGateway::start(move |_, _| (200, lines.clone().into())).await;
    let output = fake
        .run(&["logs", "web", "--instance", "b/i1"])
        .await
        .expect(0);
    assert_eq!(output.out, "2026-01-31T08:09:10Z b/i1 hello\n");
    assert_eq!(output.err, WARNING);
    assert!(fake.request_lines()[0].ends_with("&instance=b%2Fi1"));
    let json = fake.run(&["logs", "web", "--json"]).await.expect(0).out;
    assert_eq!(json.lines().count(), 2, "{json}");
}
