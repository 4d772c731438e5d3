//! Links between nodes that fail: every call ends, and few are sent twice.

use std::time::Duration;

use http::Method;
use nearpath_testkit::lab::{LabLink, LinkConditions, LinkDirection};
use nearpath_testkit::need_root;

use super::functions::write_counted;
use super::load::{CallLoad, LoadPlan, RATE};
use super::machines::Machines;

/// Fault of a node's link.
#[derive(Debug, Clone, Copy)]
enum LinkFault {
    Cut,
    CutOneWay(LinkDirection),
    Loss,
    Flapping,
}

const ALL_FAULTS: [LinkFault; 5] = [
    LinkFault::Cut,
    LinkFault::CutOneWay(LinkDirection::Forward),
    LinkFault::CutOneWay(LinkDirection::Backward),
    LinkFault::Loss,
    LinkFault::Flapping,
];

fn lossy(loss: f64) -> LinkConditions {
    LinkConditions {
        loss,
        seed: 7,
        ..LinkConditions::default()
    }
}

/// Holds the fault while `load` begins the calls of `seconds`, and removes it.
async fn hold_fault(link: &LabLink, fault: LinkFault, load: &CallLoad, seconds: usize) {
    let calls = seconds * RATE as usize;
    match fault {
        LinkFault::Cut => link.cut_link(),
        LinkFault::CutOneWay(direction) => {
            link.set_one_direction(direction, &lossy(1.0)).unwrap();
        }
        LinkFault::Loss => link.set_conditions(&lossy(0.2)).unwrap(),
        LinkFault::Flapping => {
            for _ in 0..seconds {
                link.cut_link();
                load.wait_calls(RATE as usize / 2).await;
                link.restore_link();
                load.wait_calls(RATE as usize / 2).await;
            }
            return;
        }
    }
    load.wait_calls(calls).await;
    link.restore_link();
    link.set_conditions(&LinkConditions::default()).unwrap();
}

async fn run_faults(faults: &[LinkFault], seconds: usize) {
    let mut machines = Machines::new(&["a", "b", "c"]);
    write_counted(&machines, &["b", "c"]);
    machines.start_all().await;
    machines.wait_answered(0, "/function/task").await;
    for fault in faults {
        let before = machines.executions.total();
        let plan = LoadPlan::new(&machines, &[0], "/function/task", Method::GET);
        let load = CallLoad::start(plan);
        load.wait_calls(RATE as usize / 2).await;
        hold_fault(&machines.machines[1].link, *fault, &load, seconds).await;
        load.wait_calls(RATE as usize).await;
        let outcome = load.finish().await;
        let (calls, executions) = (outcome.calls(), machines.executions.total() - before);
        let (answered, failed) = (outcome.answered, outcome.failures.len());
        eprintln!(
            "{fault:?}: {calls} calls, {answered} answered, {failed} failed, {executions} executions"
        );
        assert_eq!(
            outcome.open,
            0,
            "{fault:?}: calls that do not end\n{}",
            machines.logs()
        );
        assert!(
            executions * 5 <= calls * 6,
            "{fault:?}: {executions} executions of {calls} calls"
        );
        assert!(
            answered * 2 > calls,
            "{fault:?}: {:?}\n{}",
            outcome.failures,
            machines.logs()
        );
        machines.wait_peers_up(0, 2).await;
    }
}

#[tokio::test]
async fn every_call_ends_while_a_link_is_cut_or_loses_packets() {
    need_root!();
    run_faults(&[LinkFault::Cut, LinkFault::Loss], 4).await;
}

#[tokio::test]
#[ignore = "takes minutes: make test-nodes"]
async fn every_call_ends_whatever_a_link_does() {
    need_root!();
    run_faults(&ALL_FAULTS, 20).await;
}

/// Control: a call without an end is seen.
#[tokio::test]
async fn control_calls_that_do_not_end_are_seen() {
    need_root!();
    let mut machines = Machines::new(&["a", "b"]);
    write_counted(&machines, &["b"]);
    machines.start_all().await;
    machines.wait_answered(0, "/function/task").await;
    let path = "/function/task/wait/20";
    let mut plan = LoadPlan::new(&machines, &[0], path, Method::GET);
    plan.call_limit = Duration::from_millis(200);
    let load = CallLoad::start(plan);
    load.wait_calls(20).await;
    assert!(load.finish().await.open > 0);
}

const BLOCK_UDP: &str = "add table ip block; \
     add chain ip block out { type filter hook forward priority 0; }; \
     add rule ip block out udp dport 8444 drop; \
     add rule ip block out udp sport 8444 drop";

async fn path_of_a_call(rules: Option<&str>) -> String {
    let mut machines = Machines::new(&["a", "b"]);
    write_counted(&machines, &["b"]);
    if let Some(rules) = rules {
        machines.filter(rules);
    }
    machines.start_all().await;
    machines.wait_answered(0, "/function/task").await;
    let answer = machines.get(0, "/function/task").await;
    assert_eq!(answer.status(), 200);
    answer.headers()["x-nearpath-path"]
        .to_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn calls_go_over_tls_where_udp_is_blocked() {
    need_root!();
    let path = path_of_a_call(Some(BLOCK_UDP)).await;
    assert!(
        path.starts_with("tls; obstacle=udp_blocked; node=b"),
        "{path}"
    );
}

/// Control: where UDP is not blocked, calls go over QUIC, or a kept connection is the reason.
#[tokio::test]
async fn control_calls_go_over_quic() {
    need_root!();
    let path = path_of_a_call(None).await;
    let by_udp = path.starts_with("quic; obstacle=other_node; node=b");
    assert!(by_udp || path.contains("obstacle=kept_tls"), "{path}");
}
