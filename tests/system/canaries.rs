//! A canary in one chain's memory, and a function of another chain that does all it can to reach it.

use std::fs;

use http::Method;
use nearpath_testkit::eventually;
use serde_json::{Value, json};

use crate::house::House;
use crate::shm::{ask, function, until_in_memory};

/// Bytes that are nowhere else.
fn unique(what: &str) -> Vec<u8> {
    let salt = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
    format!("{what}:{}", salt.trim()).into_bytes()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The memory of a chain as root sees it: the pools that a function's processes have mapped.
async fn pools(house: &House, name: &str) -> Vec<Vec<u8>> {
    let mut pools = Vec::new();
    for pid in house.processes(name).await {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        for line in maps.lines().filter(|line| line.contains("/memfd:nearpath-pool")) {
            let range = line.split_whitespace().next().unwrap();
            pools.push(fs::read(format!("/proc/{pid}/map_files/{range}")).unwrap());
        }
    }
    pools
}

fn holds(pools: &[Vec<u8>], wanted: &[u8]) -> bool {
    pools.iter().any(|pool| pool.windows(wanted.len()).any(|bytes| bytes == wanted))
}

/// Every attempt upon a process of the other chain was refused.
fn assert_refused(strike: &Value) {
    for (attempt, outcome) in strike.as_object().unwrap() {
        let nothing = outcome.as_array().is_some_and(Vec::is_empty);
        assert!(nothing || outcome["refused"].is_i64(), "{attempt}: {outcome}");
    }
}

fn intruder(house: &House) -> Value {
    let folder = house.data_dir.join("intruder");
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
async fn no_chain_reads_or_writes_anothers_canary() {
    nearpath_testkit::need_root!();
    let house = House::start().await;
    house.deploy_ready(&function(&house, "second", None, "")).await;
    house.deploy_ready(&function(&house, "first", Some("second"), "second")).await;
    house.deploy_ready(&intruder(&house)).await;
    until_in_memory(&house, "first").await;
    eventually("the intruder is in its chain's memory", async || {
        let answer = house.ask(Method::POST, "/function/intruder", "null").await;
        answer.status() == 200
    })
    .await;
    let (canary, mark) = (unique("canary"), unique("mark"));
    let planted = house.ask(Method::POST, "/function/first", canary.clone()).await;
    assert!(planted.status().is_success(), "{:?}", planted.body());
    assert!(holds(&pools(&house, "first").await, &canary), "it is planted, and can be found");

    let pids = [house.processes("first").await, house.processes("second").await].concat();
    let asked = json!({ "canary": hex(&canary), "mark": hex(&mark), "pids": pids }).to_string();
    let answer = house.ask(Method::POST, "/function/intruder", asked).await;
    let told: Value = serde_json::from_slice(answer.body()).unwrap_or_else(|_| panic!("{answer:?}\n{}", house.log()));

    let welcome = &told["welcome"];
    assert_eq!(
        (&welcome["domain"], &welcome["function"]),
        (&json!("other.openfaas-fn"), &json!("intruder.openfaas-fn"))
    );
    assert_eq!(told["doors"], json!(["dispatch"]), "one door, its own");
    assert!(
        told["bytes"].as_u64().unwrap() > 1 << 20 && told["control"] == true,
        "it has memory to look through: {told}"
    );
    assert_eq!(told["leaked"], json!([]), "read");
    let beyond = &told["beyond"];
    assert_eq!((&beyond["read"], &beyond["signal"]), (&json!(0), &told["bus"]), "nothing lies beyond a pool: {beyond}");
    assert!(beyond["grown"]["refused"].is_i64() && beyond["written"]["refused"].is_i64(), "{beyond}");
    assert_eq!(told["strikes"].as_object().unwrap().len(), pids.len());
    told["strikes"].as_object().unwrap().values().for_each(assert_refused);

    assert!(holds(&pools(&house, "intruder").await, &mark), "its mark is where it could write");
    let after = pools(&house, "first").await;
    assert!(holds(&after, &canary) && !holds(&after, &mark), "written");
    assert_eq!(ask(&house, "first").await.status(), 200);
}
