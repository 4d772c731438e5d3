//! A node that is killed again and again: only calls inside it fail, and none runs twice.

use std::time::Duration;

use http::Method;
use nearpath_testkit::need_root;
use rustix::process::Signal;
use tokio::time::timeout;

use super::functions::write_counted;
use super::load::{CallLoad, LoadPlan, RATE};
use super::machines::Machines;

/// Time in which other nodes notice that a node is gone.
const LEAVE_LIMIT: Duration = Duration::from_secs(3);

/// Ends node b `count` times under load.
async fn kill_often(count: usize, duplicates: bool) -> Machines {
    let mut machines = Machines::new(&["a", "b", "c"]);
    write_counted(&machines, &["b", "c"]);
    machines.start_all().await;
    machines.wait_answered(0, "/function/task").await;
    let path = "/function/task/wait/0.02";
    let mut plan = LoadPlan::new(&machines, &[0], path, Method::POST);
    plan.repeats_numbers = duplicates;
    let load = CallLoad::start(plan);
    let mut inside = 0;
    for _ in 0..count {
        load.wait_calls(RATE as usize).await;
        let (under_way, begun) = (load.progress().under_way(), load.progress().begun());
        machines.end(1, Signal::KILL);
        let left = timeout(LEAVE_LIMIT, machines.wait_peers_up(0, 1)).await;
        assert!(left.is_ok(), "b is still used:\n{}", machines.logs());
        inside += under_way + load.progress().begun() - begun;
        machines.start(1).await;
        machines.wait_peers_up(0, 2).await;
    }
    load.wait_calls(RATE as usize).await;
    let outcome = load.finish().await;
    let others: Vec<_> = outcome
        .failures
        .iter()
        .filter(|one| !is_inside(one))
        .collect();
    assert!(others.is_empty(), "{others:?}\n{}", machines.logs());
    let failed = outcome.failures.len();
    assert!(
        failed <= inside,
        "{failed} failed, {inside} could be inside"
    );
    let returns = machines
        .metric(0, "nearpath_peer_reconnects_total{node=\"b\"}")
        .await;
    assert_eq!(returns, count as f64, "b flapped:\n{}", machines.logs());
    machines
}

/// Failures of calls that a killed node had received.
fn is_inside(failure: &str) -> bool {
    ["instance_died", "response_truncated", "node b"]
        .iter()
        .any(|text| failure.contains(text))
}

#[tokio::test]
async fn a_node_that_is_killed_three_times_fails_only_the_calls_inside() {
    need_root!();
    let machines = kill_often(3, false).await;
    assert_eq!(machines.executions.repeated(), []);
}

#[tokio::test]
#[ignore = "takes half an hour: make test-nodes"]
async fn a_node_that_is_killed_fifty_times_fails_only_the_calls_inside() {
    need_root!();
    let machines = kill_often(50, false).await;
    assert_eq!(machines.executions.repeated(), []);
}

/// Control: calls that a client sends twice are seen twice.
#[tokio::test]
async fn control_calls_that_run_twice_are_seen() {
    need_root!();
    let machines = kill_often(0, true).await;
    assert!(!machines.executions.repeated().is_empty());
}
