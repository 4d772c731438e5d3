//! Queries of all nodes: the other nodes are scripted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, stream};
use http::Request;
use http_body_util::BodyExt;
use nearpath_controller::{AuthMode, ControllerConfig, PeerLineStream, PeerNodes, api};
use nearpath_testkit::within;
use nearpath_types::{LogLine, NodeName, NodeState, NodeStatus};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::fixture::{ControllerFixture, spec_json, test_config};

/// Replies of other nodes by node and path, without the query.
#[derive(Default)]
struct FakePeers {
    replies: BTreeMap<(&'static str, &'static str), Value>,
    /// Nodes that answer; all others are down.
    up: Vec<&'static str>,
    down: Vec<&'static str>,
    paths: Mutex<Vec<String>>,
    streams: Mutex<BTreeMap<String, BoxStream<'static, Result<Bytes, String>>>>,
}

impl FakePeers {
    fn new(up: &[&'static str], down: &[&'static str]) -> Self {
        Self {
            up: up.into(),
            down: down.into(),
            ..Self::default()
        }
    }

    fn reply(mut self, node: &'static str, path: &'static str, reply: Value) -> Self {
        self.replies.insert((node, path), reply);
        self
    }

    fn answer(&self, node: &NodeName, path: &str) -> Result<Value, String> {
        self.paths.lock().unwrap().push(format!("{node} {path}"));
        let path = path.split('?').next().unwrap_or_default();
        if !self.up.contains(&node.as_str()) {
            return Err("connection refused".to_owned());
        }
        let reply = self.replies.get(&(node.as_str(), path));
        reply
            .cloned()
            .ok_or_else(|| "its release does not know this query".to_owned())
    }
}

impl PeerNodes for FakePeers {
    fn own_status(&self) -> NodeStatus {
        NodeStatus {
            address: Some("a.example:8444".to_owned()),
            ..NodeStatus::default()
        }
    }

    fn peer_statuses(&self) -> Vec<NodeStatus> {
        let row = |state| {
            move |name: &&str| NodeStatus {
                name: Some((*name).to_owned()),
                state,
                ..NodeStatus::default()
            }
        };
        let up = self.up.iter().map(row(NodeState::Up));
        up.chain(self.down.iter().map(row(NodeState::Down)))
            .collect()
    }

    fn queried_peers(&self) -> Vec<NodeName> {
        let all = self.up.iter().chain(&self.down);
        all.map(|name| name.parse().unwrap()).collect()
    }

    fn fetch(&self, node: &NodeName, path: String) -> BoxFuture<'static, Result<Bytes, String>> {
        let reply = self.answer(node, &path).map(|reply| match reply {
            Value::String(text) => text.into(),
            reply => reply.to_string().into(),
        });
        std::future::ready(reply).boxed()
    }

    fn stream(
        &self,
        node: &NodeName,
        _: String,
    ) -> BoxFuture<'static, Result<PeerLineStream, String>> {
        let found = self.streams.lock().unwrap().remove(node.as_str());
        std::future::ready(found.ok_or_else(|| "connection refused".to_owned())).boxed()
    }

    fn wait_up(&self, _: &NodeName) -> BoxFuture<'static, ()> {
        std::future::pending().boxed()
    }
}

/// A controller of the node `a`, with a function `echo` and these other nodes.
async fn node_a(peers: FakePeers, more: &str) -> (ControllerFixture, Arc<FakePeers>) {
    let folder = tempfile::tempdir().unwrap();
    let config = ControllerConfig {
        node_name: Some("a".parse().unwrap()),
        ..test_config(folder.path(), AuthMode::Disabled)
    };
    let fixture = ControllerFixture::with_config(config).await;
    let peers = Arc::new(peers);
    fixture.controller.attach_peers(peers.clone());
    let spec = spec_json("echo", more);
    fixture
        .expect_status(202, "POST", "/system/functions", &spec)
        .await;
    (fixture, peers)
}

fn report(ready: u64, calls: f64) -> Value {
    json!([{ "name": "echo", "replicas": 2, "availableReplicas": ready, "invocationCount": calls,
        "revision": 9, "instances": [{ "id": "i1", "state": "ready", "addr": "", "revision": 9,
        "pid": 1, "startMs": {} }] }])
}

#[tokio::test]
async fn a_list_adds_the_other_nodes_and_names_those_that_are_down() {
    let peers = FakePeers::new(&["b"], &["c"]);
    let peers = peers.reply("b", "/node/v1/status/functions", report(2, 5.0));
    let (fixture, peers) = node_a(peers, "").await;
    let reply = fixture.get_path("/system/functions").await;
    let echo = &reply.json()[0];
    // This node counts 7 (its fleet is scripted), and `c` wants as many instances as this one.
    assert_eq!(echo["invocationCount"], 12.0, "{echo}");
    assert_eq!(
        (&echo["replicas"], &echo["availableReplicas"]),
        (&json!(4), &json!(2))
    );
    let missing = json!([{ "node": "c", "cause": "connection refused" }]);
    assert_eq!(echo["missingNodes"], missing);
    let named = reply.header("x-nearpath-missing-nodes");
    assert_eq!(named, "c=connection%20refused");
    let nodes: Vec<_> = echo["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["node"])
        .collect();
    assert_eq!(nodes, ["a", "b"]);
    let paths = peers.paths.lock().unwrap().clone();
    assert_eq!(
        paths[0],
        "b /node/v1/status/functions?namespace=openfaas-fn"
    );
}

#[tokio::test]
async fn a_description_shows_the_instances_of_all_nodes() {
    let peers = FakePeers::new(&["b"], &[]);
    let peers = peers.reply("b", "/node/v1/status/functions", report(1, 0.0));
    let (fixture, peers) = node_a(peers, "").await;
    let reply = fixture.get_path("/system/function/echo?usage=1").await;
    let echo = reply.json();
    assert_eq!(echo["instances"][0]["id"], "b/i1", "{echo}");
    assert_eq!(reply.header("x-nearpath-missing-nodes"), "");
    let paths = peers.paths.lock().unwrap().clone();
    let wanted = "b /node/v1/status/functions?namespace=openfaas-fn&name=echo&usage=1";
    assert_eq!(paths, [wanted]);
}

#[tokio::test]
async fn a_function_lacks_nothing_on_a_node_where_it_does_not_run() {
    let only_here = r#","annotations":{"nearpath.io/nodes":"a"}"#;
    let (fixture, _) = node_a(FakePeers::new(&[], &["c"]), only_here).await;
    let echo = fixture.get_path("/system/functions").await.json()[0].clone();
    assert_eq!(echo["replicas"], 1, "{echo}");
    assert_eq!(echo["missingNodes"][0]["node"], "c");
    assert!(echo["notReadyReason"].is_null(), "{echo}");
}

#[tokio::test]
async fn reports_have_the_rows_of_all_nodes() {
    for query in ["edges", "memory", "paths", "pool"] {
        let path: &'static str = format!("/node/v1/status/{query}").leak();
        let own_row = {
            let fixture = ControllerFixture::new().await;
            fixture.get_path(&format!("/system/{query}")).await.json()[0].clone()
        };
        let peers = FakePeers::new(&["b", "old"], &[]);
        let (fixture, _) = node_a(peers.reply("b", path, json!([own_row])), "").await;
        let reply = fixture.get_path(&format!("/system/{query}")).await;
        let rows = reply.json();
        let nodes: Vec<_> = rows
            .as_array()
            .unwrap()
            .iter()
            .map(|row| &row["node"])
            .collect();
        assert_eq!(nodes, ["a", "b"], "{query}: {rows}");
        let missing = reply.header("x-nearpath-missing-nodes");
        assert!(missing.starts_with("old=its%20release"), "{missing}");
    }
}

#[tokio::test]
async fn nodes_are_listed_with_their_sources() {
    let own = json!({ "name": "b", "state": "this", "functions": 0, "readyInstances": 0,
        "source": { "folder": "/srv/app", "revision": 3, "fault": "stack.yml:1: no" } });
    let peers = FakePeers::new(&["b"], &["c"]).reply("b", "/node/v1/status/node", own);
    let (fixture, _) = node_a(peers, "").await;
    let rows = fixture.get_path("/system/nodes").await.json();
    let column = |key: &str| -> Vec<Value> {
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| row[key].clone()).collect()
    };
    assert_eq!(column("name"), ["a", "b", "c"]);
    assert_eq!(column("state"), ["this", "up", "down"]);
    assert_eq!(rows[0]["address"], "a.example:8444");
    assert_eq!(rows[1]["source"]["fault"], "stack.yml:1: no", "{rows}");
    assert!(rows[2]["source"].is_null());
}

#[tokio::test]
async fn the_only_node_is_listed_without_a_name() {
    let fixture = ControllerFixture::new().await;
    fixture.deploy_function("echo").await;
    let rows = fixture.get_path("/system/nodes").await.json();
    assert_eq!(rows.as_array().unwrap().len(), 1);
    assert_eq!(
        (&rows[0]["state"], &rows[0]["functions"]),
        (&json!("this"), &json!(1))
    );
    assert!(rows[0]["name"].is_null());
}

fn log_line(second: u64, text: &str) -> LogLine {
    LogLine {
        name: "echo".into(),
        namespace: "openfaas-fn".into(),
        instance: "i1".into(),
        timestamp: SystemTime::UNIX_EPOCH + Duration::from_secs(second),
        text: text.into(),
    }
}

/// Lines of this node that have ended.
fn own_lines(fixture: &ControllerFixture, lines: &[LogLine]) {
    let (sender, receiver) = mpsc::channel(16);
    lines
        .iter()
        .for_each(|line| sender.try_send(line.clone()).unwrap());
    *fixture.fleet.log_lines.lock().unwrap() = Some(receiver);
}

fn line_texts(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        format!(
            "{} {}",
            line["instance"].as_str().unwrap(),
            line["text"].as_str().unwrap()
        )
    });
    lines.collect()
}

#[tokio::test]
async fn logs_interleave_by_time() {
    let of_b = [log_line(2, "second"), log_line(4, "fourth")];
    let of_b: Vec<_> = of_b
        .iter()
        .map(|line| serde_json::to_string(line).unwrap())
        .collect();
    let peers = FakePeers::new(&["b"], &["c"]);
    let peers = peers.reply("b", "/node/v1/logs", Value::String(of_b.join("\n")));
    let (fixture, peers) = node_a(peers, "").await;
    own_lines(&fixture, &[log_line(1, "first"), log_line(3, "third")]);
    let reply = fixture.get_path("/system/logs?name=echo&tail=3").await;
    assert_eq!(
        line_texts(&reply.text),
        [
            "b/i1 second",
            "a/i1 third",
            "b/i1 fourth",
            "c nearpath: lines of node c are missing: connection refused",
        ]
    );
    let last: Value = serde_json::from_str(reply.text.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["node"], &last["error"]),
        (&json!("c"), &json!("connection refused"))
    );
    let path = peers.paths.lock().unwrap()[0].clone();
    assert_eq!(
        path,
        "b /node/v1/logs?name=echo&namespace=openfaas-fn&follow=false&tail=3"
    );
}

#[tokio::test]
async fn an_instance_is_selected_with_its_node() {
    let of_b = serde_json::to_string(&log_line(2, "there")).unwrap();
    let peers = FakePeers::new(&["b"], &["c"]);
    let peers = peers.reply("b", "/node/v1/logs", Value::String(of_b));
    let (fixture, _) = node_a(peers, "").await;
    let reply = fixture
        .get_path("/system/logs?name=echo&instance=b/i1")
        .await;
    assert_eq!(
        line_texts(&reply.text),
        ["b/i1 there"],
        "`c` is not asked for"
    );
    let query = fixture.fleet.log_queries.lock().unwrap().pop().unwrap();
    assert_eq!(
        query.instance.as_deref(),
        Some(""),
        "no instance of this node"
    );
}

#[tokio::test]
async fn a_log_goes_on_when_a_node_goes_down() {
    let (peers, (own_sender, own_receiver)) = (FakePeers::new(&["b"], &["c"]), mpsc::channel(16));
    let line = |second, text| {
        let line = serde_json::to_vec(&log_line(second, text)).unwrap();
        Ok::<_, String>(Bytes::from(line))
    };
    let of_b = [line(1, "one"), Err("its stream ended".to_owned())];
    let of_b = stream::iter(of_b).boxed();
    peers.streams.lock().unwrap().insert("b".to_owned(), of_b);
    let (fixture, _) = node_a(peers, "").await;
    *fixture.fleet.log_lines.lock().unwrap() = Some(own_receiver);
    let request = Request::get("/system/logs?name=echo&follow=true");
    let router = fixture.controller.build_router();
    let response = api::answer_with_router(router, request.body(Body::empty()).unwrap()).await;
    let mut body = response.into_body();
    let mut next = async || {
        let frame = within(body.frame()).await?;
        let data = frame.unwrap().into_data().unwrap();
        Some(line_texts(std::str::from_utf8(&data).unwrap()).remove(0))
    };
    let mut first = vec![
        next().await.unwrap(),
        next().await.unwrap(),
        next().await.unwrap(),
    ];
    first.sort();
    assert_eq!(
        first,
        [
            "b nearpath: lines of node b are missing: its stream ended",
            "b/i1 one",
            "c nearpath: lines of node c are missing: connection refused",
        ]
    );
    own_sender.send(log_line(9, "later")).await.unwrap();
    assert_eq!(next().await.unwrap(), "a/i1 later");
    drop(own_sender);
    assert_eq!(next().await, None, "the function was removed here");
}

#[tokio::test]
async fn a_node_answers_others_about_itself_alone() {
    let peers = FakePeers::new(&["b"], &[]);
    let (fixture, peers) = node_a(peers, "").await;
    own_lines(&fixture, &[log_line(1, "first")]);
    let router = fixture.controller.build_node_router();
    let get = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = within(api::answer_with_router(router.clone(), request)).await;
        let status = response.status();
        let bytes = within(response.into_body().collect()).await.unwrap();
        (status, String::from_utf8(bytes.to_bytes().into()).unwrap())
    };
    let json_of = async |path: &str| {
        let (status, text) = get(path).await;
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let node = json_of("/node/v1/status/node").await;
    assert_eq!(
        (&node["name"], &node["state"]),
        (&json!("a"), &json!("this"))
    );
    let all = json_of("/node/v1/status/functions?namespace=openfaas-fn").await;
    assert_eq!(all[0]["name"], "echo");
    assert_eq!(all[0]["invocationCount"], 7.0);
    let unknown = json_of("/node/v1/status/functions?namespace=other&name=echo").await;
    assert_eq!(unknown, json!([]));
    let paths = json_of("/node/v1/status/paths").await;
    assert_eq!(
        paths.as_array().unwrap().len(),
        2,
        "of all namespaces: {paths}"
    );
    assert!(paths[0]["node"].is_null());
    let (_, lines) = get("/node/v1/logs?name=echo").await;
    assert_eq!(line_texts(&lines), ["i1 first"]);
    let (status, lines) = get("/node/v1/logs?name=nothing").await;
    assert_eq!((status.as_u16(), &*lines), (200, ""));
    assert_eq!(get("/node/v1/status/later").await.0, 404);
    assert_eq!(
        peers.paths.lock().unwrap().len(),
        0,
        "no other node was asked"
    );
}
