//! What `nearpath pool` and the metrics tell of connections outside.

use std::net::Ipv4Addr;

use nearpath_testkit::{eventually, need_root};
use serde_json::{Value, json};

use crate::egress::{hello, run, runner};
use crate::house::House;
use crate::outside::{NAMED, Outside, on_a_machine};
use crate::shm::{cli, metric};

/// The one line that there is of a function's connections.
fn told(house: &House, function: &str) -> Value {
    let all = cli(house, &["pool", "ls", function]);
    assert_eq!(all.as_array().map(Vec::len), Some(1), "one function, one destination: {all}");
    all[0].clone()
}

#[tokio::test]
async fn connections_outside_are_told_and_counters_outlive_instances() {
    need_root!();
    on_a_machine();
    let outside = Outside::at(Ipv4Addr::LOCALHOST);
    let folder = tempfile::tempdir().unwrap();
    let house = House::start_in(folder.path(), &[]).await;
    house.deploy_ready(&runner(folder.path(), "goes", &format!("{NAMED}:{} max=3 protocol=tcp", outside.port))).await;
    eventually("one is warm before the first call", async || told(&house, "goes")["warm"] == 1).await;
    let keeps = format!(
        "import builtins\nbuiltins.kept = socket.create_connection(('{NAMED}', {}), 20)\nsaid = 'open'",
        outside.port
    );
    assert_eq!(run(&house, "goes", &keeps).await, "open");
    assert_eq!(run(&house, "goes", &hello(NAMED, outside.port)).await, "heard hello");
    eventually("two were given, one is open still", async || {
        let one = told(&house, "goes");
        let given = one["hits"].as_u64().unwrap() + one["misses"].as_u64().unwrap();
        given == 2
            && one["open"].as_u64().unwrap() - one["warm"].as_u64().unwrap() - one["connecting"].as_u64().unwrap() == 1
    })
    .await;
    let one = told(&house, "goes");
    let declared = (&one["owner"], &one["protocol"], &one["max"]);
    assert_eq!(declared, (&json!("goes.openfaas-fn"), &json!("tcp"), &json!(3)));
    assert_eq!(one["openThere"], one["open"]);
    let labels = format!(r#"owner="goes.openfaas-fn",namespace="openfaas-fn",destination="{NAMED}:{}""#, outside.port);
    let (hits, misses) = (
        metric(&house, "nearpath_pool_hits_total", &labels).await,
        metric(&house, "nearpath_pool_misses_total", &labels).await,
    );
    assert_eq!((hits + misses, metric(&house, "nearpath_pool_max", &labels).await), (2.0, 3.0));

    house.scale("goes", 0).await;
    eventually("with the last instance its connections end", async || told(&house, "goes")["open"] == 0).await;
    let one = told(&house, "goes");
    assert_eq!(
        one["hits"].as_f64().unwrap() + one["misses"].as_f64().unwrap(),
        2.0,
        "and what was counted stays: {one}"
    );
}
