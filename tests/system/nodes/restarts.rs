//! Nodes that stop in order: other nodes lose no call.

use http::Method;
use nearpath_testkit::need_root;
use rustix::process::Signal;

use super::functions::write_counted;
use super::load::{LoadPlan, NodeLoad};
use super::machines::Machines;

fn plan(machines: &Machines, at: &[usize]) -> LoadPlan {
    LoadPlan {
        gateways: at
            .iter()
            .map(|at| machines.machines[*at].gateway())
            .collect(),
        path: "/function/work/wait/0.05",
        method: Method::POST,
    }
}

#[tokio::test]
async fn a_rolling_restart_loses_no_call() {
    need_root!();
    let mut machines = Machines::new(&["a", "b", "c"]);
    write_counted(&machines, &["b", "c"], "");
    machines.start_all().await;
    machines.wait_answered(0, "/function/work").await;
    let load = NodeLoad::start(plan(&machines, &[0]));
    load.wait_calls(200).await;
    for at in [1, 2] {
        let before = std::time::Instant::now();
        machines.end(at, Signal::TERM);
        eprintln!(
            "{at} stopped in {:?}, {} failed",
            before.elapsed(),
            load.progress().failed()
        );
        load.wait_calls(100).await;
        machines.start(at).await;
        machines.wait_peers_up(0, 2).await;
        load.wait_calls(200).await;
    }
    let outcome = load.finish().await;
    eprintln!("{} answered, {:?}", outcome.answered, outcome.paths);
    assert!(
        outcome.failures.is_empty(),
        "{:?}\n{}",
        outcome.failures,
        machines.logs()
    );
    assert!(machines.executions.repeated().is_empty());
}
