//! The whole node on a fake machine and a virtual clock.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod fake;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fake::{Bench, Event, Script, echo, ready};
use nearpath_node::Settle;
use nearpath_node::machine::Exit;
use nearpath_types::{Desired, InstanceState, LogQuery};
use tokio::sync::Notify;

async fn bench() -> Bench {
    Bench::new(Settle::after(Duration::from_millis(10))).await
}

#[tokio::test(start_paused = true)]
async fn ten_start_in_parallel_each_with_its_own_place() {
    let bench = bench().await;
    bench.node.apply(bench.echo(1, 10, ""));
    let snapshot = bench.until_ready(10).await;
    let addresses: BTreeSet<_> = echo(&snapshot).instances.iter().map(|one| one.addr).collect();
    let uids: BTreeSet<_> = bench.machine.blueprints().iter().map(|one| one.uid).collect();
    assert_eq!((addresses.len(), uids.len()), (10, 10));
    assert_eq!(bench.machine.count(Event::Launched), 10);
    assert!(bench.registry.encode().contains("nearpath_instance_starts_total{result=\"ready\"} 10"));
    assert!(bench.registry.encode().contains("nearpath_instances{state=\"ready\"} 10"));
}

#[tokio::test(start_paused = true)]
async fn the_same_wish_twice_changes_nothing() {
    let bench = bench().await;
    bench.node.apply(bench.echo(1, 2, ""));
    let before = bench.until_ready(2).await;
    bench.node.apply(bench.echo(1, 2, ""));
    let mut observed = bench.node.observed();
    observed.changed().await.unwrap();
    assert_eq!(bench.node.snapshots().borrow().version, before.version);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_told_to_stop_before_the_gateway_let_go() {
    let (gate, asked) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let hooks = (gate.clone(), asked.clone());
    let bench = Bench::new(Settle::when(move |_| {
        let (gate, asked) = hooks.clone();
        Box::pin(async move {
            asked.notify_one();
            gate.notified().await;
        })
    }))
    .await;
    bench.node.apply(bench.echo(1, 2, ""));
    let before = bench.until_ready(2).await;
    bench.node.apply(bench.echo(1, 1, ""));
    asked.notified().await;
    let now = bench.node.snapshots().borrow().clone();
    let youngest = *ready(&before).iter().max().unwrap();
    let draining: Vec<_> = echo(&now).instances.iter().filter(|one| one.state == InstanceState::Draining).collect();
    assert_eq!(draining.iter().map(|one| one.id).collect::<Vec<_>>(), [youngest]);
    assert_eq!(bench.machine.count(Event::Terminated), 0);
    gate.notify_one();
    bench.until_only_ready(1).await;
    assert_eq!(bench.machine.count(Event::Terminated), 1);
    assert_eq!(bench.machine.count(Event::Killed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_rolling_update_never_has_fewer_ready() {
    let bench = bench().await;
    bench.node.apply(bench.echo(1, 3, ""));
    let old = ready(&*bench.until_ready(3).await);
    let mut snapshots = bench.node.snapshots();
    bench.node.apply(bench.echo(2, 3, ""));
    loop {
        snapshots.changed().await.unwrap();
        let snapshot = snapshots.borrow_and_update().clone();
        assert!(ready(&snapshot).len() >= 3, "{snapshot:?}");
        if echo(&snapshot).instances.iter().all(|one| !old.contains(&one.id)) {
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_revision_leaves_the_old_one_serving() {
    let bench = bench().await;
    bench.machine.script("bad", Script::Crash);
    bench.node.apply(bench.echo(1, 2, ""));
    let old = ready(&*bench.until_ready(2).await);
    bench.node.apply(bench.echo(2, 2, "bad"));
    bench.machine.until(Event::Released, 6).await;
    let now = bench.node.snapshots().borrow().clone();
    assert_eq!(ready(&now), old);
    assert_eq!(echo(&now).trouble, None, "callers do not suffer");
    let trouble = bench.trouble().await;
    assert!(trouble.contains("exit code 1") && trouble.contains("no module named cart"), "{trouble}");
    bench.node.apply(bench.echo(3, 2, ""));
    bench.until(|now| ready(now).len() == 2 && ready(now).iter().all(|id| !old.contains(id))).await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_start_backs_off_and_is_told_to_callers() {
    let bench = bench().await;
    bench.machine.script("bad", Script::Crash);
    bench.node.apply(bench.echo(1, 4, "bad"));
    bench.machine.until(Event::Launched, 12).await;
    let times = bench.machine.times(Event::Launched);
    let pauses: Vec<_> = times[3..].windows(2).map(|pair| (pair[1].0 - pair[0].0).as_millis()).collect();
    for (pause, least) in pauses.iter().zip([100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000]) {
        assert!(*pause >= least && *pause < least + 600, "pauses {pauses:?}");
    }
    let snapshot = bench.until(|snapshot| echo(snapshot).trouble.is_some()).await;
    assert!(echo(&snapshot).trouble.as_ref().unwrap().contains("no module named cart"));
    bench.machine.script("bad", Script::Serve);
    let healed = bench.until_only_ready(4).await;
    assert_eq!(echo(&healed).trouble, None);
}

#[tokio::test(start_paused = true)]
async fn what_can_never_start_is_tried_again_only_when_deployed_anew() {
    let bench = bench().await;
    std::os::unix::fs::symlink("/root/secret", bench.code().join("link")).unwrap();
    bench.node.apply(bench.echo(1, 1, ""));
    let trouble = bench.trouble().await;
    assert!(trouble.contains("outside of the folder") && trouble.contains("until the function is deployed anew"));
    bench.node.apply(bench.echo(1, 2, "")); // scaling is no deploy
    bench.until(|snapshot| echo(snapshot).replicas == 2).await;
    tokio::time::sleep(Duration::from_secs(3_600)).await; // virtual: long enough for every retry
    assert!(bench.registry.encode().contains("nearpath_instance_starts_total{result=\"failed\"} 1\n"));
    std::fs::remove_file(bench.code().join("link")).unwrap();
    bench.node.apply(bench.echo(2, 1, ""));
    bench.until_ready(1).await;
}

#[tokio::test(start_paused = true)]
async fn what_the_kernel_refuses_is_told_and_tried_again() {
    let bench = bench().await;
    bench.machine.script("", Script::Refused);
    bench.node.apply(bench.echo(1, 1, ""));
    let trouble = bench.trouble().await;
    assert!(trouble.contains("no more namespaces") && trouble.contains("nearpath doctor"), "{trouble}");
    bench.machine.script("", Script::Serve);
    bench.until_ready(1).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_dies_is_replaced_at_once_with_another_address() {
    let bench = bench().await;
    bench.node.apply(bench.echo(1, 2, ""));
    let before = bench.until_ready(2).await;
    let victim = echo(&before).instances[0].clone();
    bench.machine.end(victim.id, Exit::Signal(9));
    let after = bench.until(|now| ready(now).len() == 2 && !ready(now).contains(&victim.id)).await;
    assert!(echo(&after).instances.iter().all(|one| one.addr != victim.addr));
    let [.., last] = bench.machine.times(Event::Launched)[..] else { panic!("three launches") };
    let [died, ..] = bench.machine.times(Event::Released)[..] else { panic!("one release") };
    assert!(last.0 - died.0 < Duration::from_millis(100), "no pause the first time");
}

#[tokio::test(start_paused = true)]
async fn a_stubborn_one_is_killed_at_its_limit() {
    let bench = bench().await;
    bench.machine.script("", Script::Stubborn);
    bench.node.apply(bench.echo(1, 1, ""));
    bench.until_ready(1).await;
    bench.node.apply(bench.echo(1, 0, ""));
    bench.machine.until(Event::Released, 1).await;
    let (asked, killed) = (bench.machine.times(Event::Terminated)[0], bench.machine.times(Event::Killed)[0]);
    assert_eq!((killed.0 - asked.0).as_secs(), 63, "write_timeout 60 s, stop_grace 2 s and one more");
    assert_eq!(echo(&bench.node.snapshots().borrow()).replicas, 0, "asleep, and still known");
}

#[tokio::test(start_paused = true)]
async fn one_that_has_not_spoken_yet_is_deaf_and_not_waited_for() {
    let bench = bench().await;
    bench.machine.script("", Script::Silent);
    bench.node.apply(bench.echo(1, 1, ""));
    bench.machine.until(Event::Launched, 1).await;
    let begun = tokio::time::Instant::now();
    bench.node.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!((bench.machine.count(Event::Killed), bench.machine.count(Event::Released)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn one_that_never_gets_ready_is_given_up() {
    let bench = bench().await;
    bench.machine.script("", Script::Silent);
    bench.node.apply(bench.echo(1, 1, ""));
    let trouble = bench.trouble().await;
    assert!(trouble.contains("not ready within 40s"), "{trouble}");
    assert_eq!(bench.machine.count(Event::Killed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_removed_function_is_unknown_at_once_and_drains() {
    let bench = bench().await;
    bench.node.apply(bench.echo(1, 3, ""));
    bench.until_ready(3).await;
    bench.node.apply(Desired::default());
    bench.until(|snapshot| snapshot.functions.is_empty()).await;
    bench.machine.until(Event::Released, 3).await;
    bench.node.observed().wait_for(|all| all.is_empty()).await.unwrap();
    let query = LogQuery { function: "echo".parse().unwrap(), instance: None, tail: None, since: None, follow: false };
    assert!(bench.node.logs(query).recv().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn stop_drains_everything_side_by_side() {
    let bench = bench().await;
    bench.machine.script("", Script::Stubborn);
    bench.node.apply(bench.echo(1, 5, ""));
    bench.until_ready(5).await;
    let begun = tokio::time::Instant::now();
    bench.node.stop().await;
    assert_eq!(bench.machine.count(Event::Released), 5);
    assert_eq!(begun.elapsed().as_secs(), 63, "one limit, not five");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_node_kills_its_instances() {
    let Bench { machine, node, .. } = {
        let bench = bench().await;
        bench.node.apply(bench.echo(1, 2, ""));
        bench.until_ready(2).await;
        bench
    };
    drop(node);
    machine.until(Event::Released, 2).await;
    assert_eq!((machine.count(Event::Killed), machine.count(Event::Terminated)), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn usage_is_summed_over_instances() {
    let bench = bench().await;
    bench.node.apply(bench.echo(1, 2, ""));
    bench.until_ready(2).await;
    tokio::time::advance(Duration::from_secs(1)).await;
    let usage = bench.node.usage(&"echo".parse().unwrap()).await;
    assert_eq!(usage.total_memory_bytes, f64::from(2 << 20));
    assert!(usage.cpu > 500.0 && usage.cpu <= 1_000.0, "half a core each since the start: {usage:?}");
    let idle = bench.node.usage(&"echo".parse().unwrap()).await;
    assert_eq!(idle.cpu, 0.0);
}
