//! Nodes that stop in order: other nodes lose no call, however long it takes.

use http::Method;
use nearpath_testkit::need_root;
use rustix::process::Signal;

use super::functions::write_counted;
use super::load::{CallLoad, LoadOutcome, LoadPlan, RATE};
use super::machines::Machines;

/// Time of each call, so that some are open whenever a node ends.
const PATH: &str = "/function/task/wait/0.05";

/// Restarts one node after the other, while clients call the others. Two of them run the function.
async fn restart_all(names: &[&'static str], signal: Signal) -> (LoadOutcome, Machines) {
    let mut machines = Machines::new(names);
    write_counted(&machines, &names[1..3]);
    machines.start_all().await;
    for at in 0..names.len() {
        machines.wait_answered(at, "/function/task").await;
    }
    let mut outcome = LoadOutcome::default();
    for at in 0..names.len() {
        let others: Vec<_> = (0..names.len()).filter(|other| *other != at).collect();
        let load = CallLoad::start(LoadPlan::new(&machines, &others, PATH, Method::POST));
        load.wait_calls(RATE as usize).await;
        machines.end(at, signal);
        load.wait_calls(RATE as usize / 2).await;
        machines.start(at).await;
        for other in others {
            machines.wait_peers_up(other, names.len() - 1).await;
        }
        load.wait_calls(RATE as usize / 2).await;
        outcome.add(load.finish().await);
    }
    (outcome, machines)
}

#[tokio::test]
async fn a_rolling_restart_of_four_nodes_fails_no_call() {
    need_root!();
    let (outcome, machines) = restart_all(&["a", "b", "c", "d"], Signal::TERM).await;
    outcome.assert_no_failure(&machines);
    assert_eq!(machines.executions.repeated(), []);
}

/// Control: nodes that are killed lose the calls inside them.
#[tokio::test]
async fn control_a_rolling_kill_fails_calls() {
    need_root!();
    let (outcome, machines) = restart_all(&["a", "b", "c"], Signal::KILL).await;
    assert!(!outcome.failures.is_empty(), "{}", machines.logs());
}

/// A call that lasts longer than any time after which a silent node counts as down.
#[tokio::test]
async fn a_long_call_ends_on_a_node_that_drains() {
    need_root!();
    let mut machines = Machines::new(&["a", "b"]);
    write_counted(&machines, &["b"]);
    machines.start_all().await;
    machines.wait_answered(0, "/function/task").await;
    let call = machines.start_call(0, "/function/task/wait/6?long");
    machines.executions.wait_for("long").await;
    machines.end(1, Signal::TERM);
    let answer = nearpath_testkit::within(call).await.unwrap();
    assert_eq!(
        answer.status(),
        200,
        "{:?}\n{}",
        answer.body(),
        machines.logs()
    );
    assert!(
        !machines.logs().contains("drain timeout"),
        "{}",
        machines.logs()
    );
}

/// The gateway says which part is missing, long before the time for a cold start is over.
#[tokio::test]
async fn a_call_of_a_function_without_a_connected_node_is_refused_with_the_reason() {
    need_root!();
    let mut machines = Machines::new(&["a", "b"]);
    write_counted(&machines, &["b"]);
    machines.start(0).await;
    let known = "source: applied";
    let logs = async || machines.logs().contains(known);
    nearpath_testkit::eventually("the function is known", logs).await;
    let answer = machines.get(0, "/function/task").await;
    let body = String::from_utf8_lossy(answer.body()).into_owned();
    assert_eq!(answer.status(), 503, "{body}");
    assert!(body.contains("none of them was connected"), "{body}");
}
