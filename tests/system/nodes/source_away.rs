//! The folder goes away while a node restarts and a sleeping function is woken.

use std::time::Duration;

use http::Method;
use nearpath_testkit::need_root;
use rustix::process::Signal;
use tokio::time::timeout;

use super::functions::{counted, function_entry, write_handler};
use super::load::{CallLoad, LoadPlan, RATE};
use super::machines::Machines;

/// `task` runs on two nodes, `nap` sleeps on one of them, and `kept` runs on the other.
async fn start_nodes() -> Machines {
    let mut machines = Machines::new(&["a", "b", "c"]);
    write_handler(&machines);
    let nap = "labels: {com.openfaas.scale.min: 0}, nodes: [c],";
    machines.write(
        "stack.yml",
        &format!(
            "functions:\n{}{}{}",
            counted("task", "nodes: [b, c],"),
            function_entry("nap", "./task", nap),
            counted("kept", "nodes: [b],"),
        ),
    );
    machines.start_all().await;
    for at in [0, 2] {
        machines.wait_answered(at, "/function/task").await;
    }
    machines.wait_answered(0, "/function/kept").await;
    machines
}

/// Takes the source away for `seconds` of load, restarts node b meanwhile, and wakes a function.
async fn source_is_away(seconds: usize) {
    let mut machines = start_nodes().await;
    let load = CallLoad::start(LoadPlan::new(
        &machines,
        &[0, 2],
        "/function/task",
        Method::POST,
    ));
    machines.take_source_away();
    let half = seconds * RATE as usize / 2;
    load.wait_calls(half).await;
    machines.end(1, Signal::TERM);
    machines.start(1).await;
    machines.wait_peers_up(1, 2).await;
    machines.wait_answered(0, "/function/kept").await;
    let woken = machines.get(0, "/function/nap").await;
    assert_eq!(
        woken.status(),
        200,
        "{:?}\n{}",
        woken.body(),
        machines.logs()
    );
    load.wait_calls(half).await;
    machines.bring_source_back();
    load.wait_calls(2 * RATE as usize).await;
    load.finish().await.assert_no_failure(&machines);
}

#[tokio::test]
async fn a_source_that_is_away_fails_no_call() {
    need_root!();
    source_is_away(20).await;
}

#[tokio::test]
#[ignore = "takes ten minutes: make test-nodes"]
async fn a_source_that_is_away_for_ten_minutes_fails_no_call() {
    need_root!();
    source_is_away(600).await;
}

/// Control: without its last good state, a node that restarts has no function.
#[tokio::test]
async fn control_a_node_without_its_last_state_serves_nothing() {
    need_root!();
    let mut machines = start_nodes().await;
    machines.take_source_away();
    machines.end(1, Signal::TERM);
    machines.forget_state(1);
    machines.start(1).await;
    machines.wait_peers_up(0, 2).await;
    let call = machines.get(0, "/function/kept");
    // It waits for an instance, or is refused.
    let answered = timeout(Duration::from_secs(3), call).await;
    let is_served = answered.is_ok_and(|answer| answer.status() == 200);
    assert!(!is_served, "{}", machines.logs());
}
