//! A canary in one chain's memory, and a function of another chain that tries everything to reach
//! it.

use std::fs;

use http::Method;
use nearpath_testkit::eventually;
use serde_json::{Value, json};

use crate::shm::{call_traced, chain_function, wait_in_memory};
use crate::test_server::TestServer;

/// Bytes that occur nowhere else.
fn unique_bytes(what: &str) -> Vec<u8> {
    let salt = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
    format!("{what}:{}", salt.trim()).into_bytes()
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Memory of a chain as root sees it: the pools that a function's processes have mapped.
async fn mapped_pools(server: &TestServer, name: &str) -> Vec<Vec<u8>> {
    let mut pools = Vec::new();
    for pid in server.instance_processes(name).await {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        for line in maps
            .lines()
            .filter(|line| line.contains("/memfd:nearpath-pool"))
        {
            let range = line.split_whitespace().next().unwrap();
            pools.push(fs::read(format!("/proc/{pid}/map_files/{range}")).unwrap());
        }
    }
    pools
}

fn contains_bytes(pools: &[Vec<u8>], wanted: &[u8]) -> bool {
    pools
        .iter()
        .any(|pool| pool.windows(wanted.len()).any(|bytes| bytes == wanted))
}

/// Asserts that every attempt on a process of the other chain was refused.
fn assert_refused(strike: &Value) {
    for (attempt, outcome) in strike.as_object().unwrap() {
        let nothing = outcome.as_array().is_some_and(Vec::is_empty);
        assert!(
            nothing || outcome["refused"].is_i64(),
            "{attempt}: {outcome}"
        );
    }
}

fn intruder_function(server: &TestServer) -> Value {
    let folder = server.data_dir.join("intruder");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("handler.py"), include_str!("canaries.py")).unwrap();
    json!({
        "service": "intruder",
        "image": format!("file://{}", folder.display()),
        "envProcess": "python3 handler.py",
        "envVars": { "mode": "http", "upstream_url": "http://127.0.0.1:5000" },
        "annotations": { "nearpath.io/chain": "other", "nearpath.io/calls": "" },
    })
}

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
async fn no_chain_reads_or_writes_anothers_canary() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&chain_function(&server, "second", None, ""))
        .await;
    server
        .deploy_ready(&chain_function(&server, "first", Some("second"), "second"))
        .await;
    server.deploy_ready(&intruder_function(&server)).await;
    wait_in_memory(&server, "first").await;
    eventually("the intruder is in its chain's memory", async || {
        let answer = server
            .send_request(Method::POST, "/function/intruder", "null")
            .await;
        answer.status() == 200
    })
    .await;
    let (canary, mark) = (unique_bytes("canary"), unique_bytes("mark"));
    let planted = server
        .send_request(Method::POST, "/function/first", canary.clone())
        .await;
    assert!(planted.status().is_success(), "{:?}", planted.body());
    assert!(
        contains_bytes(&mapped_pools(&server, "first").await, &canary),
        "it is planted, and can be found"
    );

    let pids = [
        server.instance_processes("first").await,
        server.instance_processes("second").await,
    ]
    .concat();
    let question =
        json!({ "canary": to_hex(&canary), "mark": to_hex(&mark), "pids": pids }).to_string();
    let answer = server
        .send_request(Method::POST, "/function/intruder", question)
        .await;
    let report: Value = serde_json::from_slice(answer.body())
        .unwrap_or_else(|_| panic!("{answer:?}\n{}", server.log()));

    let welcome = &report["welcome"];
    assert_eq!(
        (&welcome["domain"], &welcome["function"]),
        (&json!("other.openfaas-fn"), &json!("intruder.openfaas-fn"))
    );
    assert_eq!(report["doors"], json!(["dispatch"]), "one door, its own");
    assert!(
        report["bytes"].as_u64().unwrap() > 1 << 20 && report["control"] == true,
        "it has memory to look through: {report}"
    );
    assert_eq!(report["leaked"], json!([]), "read");
    let beyond = &report["beyond"];
    assert_eq!(
        (&beyond["read"], &beyond["signal"]),
        (&json!(0), &report["bus"]),
        "nothing lies beyond a pool: {beyond}"
    );
    assert!(
        beyond["grown"]["refused"].is_i64() && beyond["written"]["refused"].is_i64(),
        "{beyond}"
    );
    assert_eq!(report["strikes"].as_object().unwrap().len(), pids.len());
    report["strikes"]
        .as_object()
        .unwrap()
        .values()
        .for_each(assert_refused);

    assert!(
        contains_bytes(&mapped_pools(&server, "intruder").await, &mark),
        "its mark is where it could write"
    );
    let after = mapped_pools(&server, "first").await;
    assert!(
        contains_bytes(&after, &canary) && !contains_bytes(&after, &mark),
        "written"
    );
    assert_eq!(call_traced(&server, "first").await.status(), 200);
}
