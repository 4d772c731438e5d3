//! Functions that know HTTP and nothing else take part in their chain's shared memory: the watchdog takes their calls there,
//! and picks up what they ask of `http://gateway:8080/function/…`.

use std::path::Path;

use http::{Method, Request};
use http_body_util::Full;
use nearpath_testkit::{eventually, within};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::house::{Answer, House, send};

/// A function in Python's own HTTP server, of the chain `shop`.
fn function(house: &House, name: &str, calls: &str) -> Value {
    let folder = house.data_dir.join("plain");
    if !folder.exists() {
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("handler.py"), include_str!("pickup.py")).unwrap();
    }
    json!({
        "service": name,
        "image": format!("file://{}", folder.display()),
        "envProcess": "python3 handler.py",
        "envVars": { "mode": "http", "upstream_url": "http://127.0.0.1:5000" },
        "annotations": { "nearpath.io/chain": "shop", "nearpath.io/calls": calls },
    })
}

/// Asks `first`, with the gateway's word on the way there.
async fn ask(house: &House, path: &str, body: impl Into<bytes::Bytes>) -> Answer {
    let request = Request::builder().method(Method::POST).uri(format!("/function/first/{path}"));
    let request = request.header("host", "localhost").header("x-nearpath-path", "?");
    within(send(house.addr, request.body(Full::new(body.into())).unwrap())).await.unwrap()
}

/// What `first` was told when it asked as `path` says.
async fn told(house: &House, path: &str, body: impl Into<bytes::Bytes>) -> Value {
    let answer = ask(house, path, body).await;
    assert_eq!(answer.status(), 203, "{:?}", answer.body());
    serde_json::from_slice(answer.body()).unwrap()
}

fn way(answer: &Answer) -> &str {
    answer.headers()["x-nearpath-path"].to_str().unwrap()
}

/// `first`, which may call `second`, and others as wished; all ready, and in memory.
async fn chain(house: &House, second: &Value, calls: &str) {
    house.deploy_ready(second).await;
    house.deploy_ready(&function(house, "first", calls)).await;
    until_near(house, "second").await;
}

async fn until_near(house: &House, callee: &str) {
    eventually("both hops go through memory", async || {
        let answer = ask(house, &format!("call/{callee}"), "").await;
        let near = answer.status() == 203 && way(&answer) == "shm";
        near && serde_json::from_slice::<Value>(answer.body()).unwrap()["headers"]["x-nearpath-path"] == "shm"
    })
    .await;
}

#[tokio::test]
async fn plain_handlers_are_called_and_call_through_memory() {
    nearpath_testkit::need_root!();
    let house = House::start().await;
    chain(&house, &function(&house, "second", ""), "second").await;
    let told = told(&house, "call/second/a/b?c=d%20e", "some bytes").await;
    assert_eq!((&told["status"], &told["headers"]["x-own"]), (&json!(203), &json!("kept")));
    let second: Value = serde_json::from_str(told["body"].as_str().unwrap()).unwrap();
    assert_eq!((&second["method"], &second["path"]), (&json!("POST"), &json!("/a/b?c=d%20e")));
    assert_eq!(second["bytes"], 10);
}

/// What differs from call to call, and who served it.
const VARYING: &[&str] = &["x-start-time", "x-duration-seconds", "date", "x-served-by", "content-length"];

#[tokio::test]
async fn the_way_is_not_to_be_seen_in_a_request_or_its_answer() {
    nearpath_testkit::need_root!();
    let house = House::start().await;
    chain(&house, &function(&house, "second", ""), "second").await;
    let mut seen = Vec::new();
    for gateway in ["call", "direct"] {
        let told = told(&house, &format!("{gateway}/second/x"), "abc").await;
        let second: Value = serde_json::from_str(told["body"].as_str().unwrap()).unwrap();
        let asked: Vec<(String, String)> = serde_json::from_value(second["headers"].clone()).unwrap();
        let answered: std::collections::BTreeMap<String, String> =
            serde_json::from_value(told["headers"].clone()).unwrap();
        let plain = |(name, value): (String, String)| {
            let value = value.replace("10.62.0.1:8080", "gateway:8080");
            (!VARYING.contains(&&*name)).then_some((name, value))
        };
        let asked: Vec<_> = asked.into_iter().filter_map(plain).collect();
        let answered: Vec<_> = answered.into_iter().filter_map(plain).collect();
        seen.push((asked, answered));
    }
    assert_eq!(seen[0], seen[1]);
    assert!(seen[0].0.iter().any(|(name, value)| name == "x-call-id" && value == "one-id"), "{:?}", seen[0]);
}

#[tokio::test]
async fn what_has_no_ring_is_the_gateways() {
    nearpath_testkit::need_root!();
    let house = House::start().await;
    let mut outside = function(&house, "outside", "");
    outside["annotations"] = json!({});
    for other in [&outside, &function(&house, "stranger", "")] {
        house.deploy_ready(other).await;
    }
    chain(&house, &function(&house, "second", ""), "second,outside").await;
    let there = told(&house, "call/outside", "").await;
    assert_eq!(
        (&there["status"], &there["headers"]["x-nearpath-path"]),
        (&json!(203), &json!("http; not_nearer=no_domain"))
    );
    for name in ["stranger", "nobody", "not%20a%20name"] {
        let [picked, direct] =
            [told(&house, &format!("call/{name}"), "").await, told(&house, &format!("direct/{name}"), "").await];
        assert_eq!((&picked["status"], &picked["body"]), (&direct["status"], &direct["body"]), "{name}");
        assert_eq!(picked["headers"]["x-nearpath-reason"], direct["headers"]["x-nearpath-reason"], "{name}");
        assert!(picked["status"].as_u64().unwrap() >= 400, "{picked}");
    }
}

#[tokio::test]
async fn a_sleeping_callee_is_woken() {
    nearpath_testkit::need_root!();
    let house = House::start().await;
    chain(&house, &function(&house, "second", ""), "second").await;
    house.scale("second", 0).await;
    house.until_available("second", 0).await;
    assert_eq!(told(&house, "call/second", "").await["status"], 203);
    until_near(&house, "second").await;
}

#[tokio::test]
async fn a_callee_that_dies_is_an_error_and_then_another() {
    nearpath_testkit::need_root!();
    let house = House::start().await;
    chain(&house, &function(&house, "second", ""), "second").await;
    let victim = house.instance_pids("second").await[0];
    let open = told(&house, "call/second/sleep/50", "");
    let kill = async {
        eventually("second has the call", async || asleep(victim)).await;
        kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
    };
    let (broken, ()) = tokio::join!(open, kill);
    assert_eq!((&broken["status"], &broken["headers"]["x-nearpath-reason"]), (&json!(502), &json!("instance_died")));
    eventually("it is dead", async || !Path::new(&format!("/proc/{victim}")).exists()).await;
    until_near(&house, "second").await;
}

/// Whether the handler of this instance is at work: it says so in a file.
fn asleep(watchdog: i32) -> bool {
    Path::new(&format!("/proc/{watchdog}/root/tmp/asleep")).exists()
}

#[tokio::test]
async fn upgrades_streams_and_large_bodies_pass() {
    nearpath_testkit::need_root!();
    let house = House::start().await;
    chain(&house, &function(&house, "second", ""), "second").await;
    assert_eq!(told(&house, "chat/second", "").await["said"], "HELLO");
    let large = vec![b'x'; 5 << 20];
    let back = told(&house, "call/second", large.clone()).await;
    let second: Value = serde_json::from_str(back["body"].as_str().unwrap()).unwrap();
    assert_eq!(second["bytes"], large.len());
    let just = told(&house, "call/second", vec![b'y'; 1 << 20]).await;
    assert_eq!(just["headers"]["x-nearpath-path"], "shm", "a mebibyte is collected");
    let second: Value = serde_json::from_str(just["body"].as_str().unwrap()).unwrap();
    assert_eq!(second["bytes"], 1 << 20);
    let events = told(&house, "call/second/events", "").await;
    assert_eq!(events["headers"]["x-nearpath-path"], "shm", "answers are streamed");
    assert_eq!(events["body"], "data: 0\n\ndata: 1\n\ndata: 2\n\n");
    let answer = told(&house, &format!("call/second/large/{}", 5 << 20), "").await;
    assert_eq!(answer["headers"]["x-nearpath-path"], "shm");
    assert_eq!(answer["body"].as_str().unwrap().len(), (5 << 20) + 2, "in quotes");
}

#[tokio::test]
async fn a_limit_of_the_callee_holds_for_calls_through_memory() {
    nearpath_testkit::need_root!();
    let house = House::start().await;
    let mut second = function(&house, "second", "");
    second["annotations"]["nearpath.io/max-inflight"] = json!("1");
    second["annotations"]["nearpath.io/max-body"] = json!("1Ki");
    chain(&house, &second, "second").await;
    let calls = (0..4).map(|_| told(&house, "call/second/sleep/0.05", ""));
    for told in futures_util::future::join_all(calls).await {
        assert_eq!(told["status"], 203, "those that find it full wait at the gateway: {told}");
    }
    let refused = told(&house, "call/second", vec![b'x'; 2000]).await;
    assert_eq!((&refused["status"], &refused["headers"]["x-nearpath-reason"]), (&json!(413), &json!("body_too_large")));
}

#[tokio::test]
async fn a_call_through_memory_is_finished_before_an_instance_stops() {
    nearpath_testkit::need_root!();
    let house = House::start().await;
    chain(&house, &function(&house, "second", ""), "second").await;
    let watchdog = house.instance_pids("second").await[0];
    let open = told(&house, "call/second/sleep/1", "");
    let stop = async {
        eventually("second has the call", async || asleep(watchdog)).await;
        house.scale("second", 0).await;
    };
    let (told, ()) = tokio::join!(open, stop);
    assert_eq!((&told["status"], &told["headers"]["x-nearpath-path"]), (&json!(203), &json!("shm")));
}

#[tokio::test]
async fn a_tenant_may_do_without() {
    nearpath_testkit::need_root!();
    let house = House::start().await;
    let mut first = function(&house, "first", "second");
    first["envVars"]["shared_memory"] = json!("false");
    house.deploy_ready(&first).await;
    house.deploy_ready(&function(&house, "second", "")).await;
    eventually("second, which came later, is near", async || {
        told(&house, "call/second", "").await["headers"]["x-nearpath-path"] == "shm"
    })
    .await;
    let answer = ask(&house, "call/second", "").await;
    assert_eq!((answer.status().as_u16(), way(&answer)), (203, "http; not_nearer=no_party"));
    let told: Value = serde_json::from_slice(answer.body()).unwrap();
    assert_eq!(told["headers"]["x-served-by"], answer.headers()["x-served-by"].to_str().unwrap(), "the gateway did");
}
