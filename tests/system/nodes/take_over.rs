//! Nodes that another process takes over, an upgrade in place: other nodes lose no call and see no node go
//! down.

use http::Method;
use nearpath_testkit::need_root;
use rustix::process::Signal;

use super::functions::write_counted;
use super::load::{CallLoad, LoadOutcome, LoadPlan, RATE};
use super::machines::Machines;

/// Time of each call, so that some are open whenever a process ends.
const PATH: &str = "/function/task/wait/0.05";

/// Functions run on the last node alone, so that its calls have no other node to go to.
async fn start_all(names: &[&'static str]) -> Machines {
    let mut machines = Machines::new(names);
    write_counted(&machines, &names[names.len() - 1..]);
    machines.start_all().await;
    for at in 0..names.len() {
        machines.wait_answered(at, "/function/task").await;
    }
    machines
}

/// Takes over a node several times, while clients call at the others.
async fn take_over_often(machines: &mut Machines, at: usize, count: usize) -> LoadOutcome {
    let others: Vec<_> = (0..machines.machines.len())
        .filter(|one| *one != at)
        .collect();
    let load = CallLoad::start(LoadPlan::new(machines, &others, PATH, Method::POST));
    for _ in 0..count {
        load.wait_calls(RATE as usize).await;
        let mut old = machines.take_over(at).await;
        let status = old.wait_exit().await;
        machines.keep_log(at, &old);
        assert!(status.success(), "{status}\n{}", machines.logs());
    }
    load.wait_calls(RATE as usize).await;
    load.finish().await
}

#[tokio::test]
async fn a_node_that_is_taken_over_fails_no_call_of_another_node() {
    need_root!();
    let mut machines = start_all(&["a", "b"]).await;
    let outcome = take_over_often(&mut machines, 1, 3).await;
    outcome.assert_no_failure(&machines);
    assert_eq!(machines.executions.repeated(), []);
    let logs = machines.logs();
    for word in [
        "no calls go there node=b",
        "did not confirm",
        "are told that",
    ] {
        assert!(!logs.contains(word), "{word}:\n{logs}");
    }
}

/// Control: a process that ends before the next one starts loses calls, as there is no other node.
#[tokio::test]
async fn control_a_node_that_is_killed_instead_fails_calls() {
    need_root!();
    let mut machines = start_all(&["a", "b"]).await;
    let load = CallLoad::start(LoadPlan::new(&machines, &[0], PATH, Method::POST));
    load.wait_calls(RATE as usize).await;
    machines.end(1, Signal::KILL);
    machines.start(1).await;
    load.wait_calls(RATE as usize).await;
    let outcome = load.finish().await;
    assert!(!outcome.failures.is_empty(), "{}", machines.logs());
}

/// A call that is open at the handover ends at the process that has received it.
#[tokio::test]
async fn a_call_of_another_node_outlives_the_process_that_took_it() {
    need_root!();
    let mut machines = start_all(&["a", "b"]).await;
    let call = machines.start_call(0, "/function/task/wait/6?long");
    machines.executions.wait_for("long").await;
    let mut old = machines.take_over(1).await;
    machines.wait_answered(0, "/function/task").await;
    let answer = nearpath_testkit::within(call).await.unwrap();
    let (status, logs) = (answer.status(), machines.logs());
    assert_eq!(status, 200, "{:?}\n{}\n{logs}", answer.body(), old.log());
    assert!(old.wait_exit().await.success());
}

/// Connections of a process that is killed while it drains are reset at once: the next call goes on.
#[tokio::test]
async fn calls_go_on_when_the_old_process_is_killed_while_it_drains() {
    need_root!();
    let mut machines = start_all(&["a", "b"]).await;
    let call = machines.start_call(0, "/function/task/wait/60?long");
    machines.executions.wait_for("long").await;
    let mut old = machines.take_over(1).await;
    machines.wait_answered(0, "/function/task").await;
    old.end_with(Signal::KILL);
    let answer = nearpath_testkit::within(call).await.unwrap();
    assert!(!answer.status().is_success(), "{:?}", answer.body());
    let load = CallLoad::start(LoadPlan::new(&machines, &[0], PATH, Method::POST));
    load.wait_calls(RATE as usize).await;
    load.finish().await.assert_no_failure(&machines);
}

/// Clients of all nodes call while each node is taken over, also at the node itself.
#[tokio::test]
async fn a_rolling_upgrade_of_four_nodes_fails_no_call() {
    need_root!();
    let mut machines = Machines::new(&["a", "b", "c", "d"]);
    write_counted(&machines, &["b", "c"]);
    machines.start_all().await;
    let all: Vec<_> = (0..machines.machines.len()).collect();
    for at in &all {
        machines.wait_answered(*at, "/function/task").await;
    }
    let load = CallLoad::start(LoadPlan::new(&machines, &all, PATH, Method::POST));
    let mut ended = Vec::new();
    for at in &all {
        load.wait_calls(RATE as usize).await;
        ended.push(machines.take_over(*at).await);
    }
    load.wait_calls(RATE as usize).await;
    load.finish().await.assert_no_failure(&machines);
    assert_eq!(machines.executions.repeated(), []);
    for (at, old) in all.iter().zip(&mut ended) {
        assert!(old.wait_exit().await.success(), "{}", old.log());
        let silent = machines.metric(*at, "nearpath_quic_silent_total").await;
        assert_eq!(
            silent,
            0.0,
            "handshakes of both processes arrive: {}",
            machines.logs()
        );
    }
}
