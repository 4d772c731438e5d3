//! The whole node on a fake machine and a virtual clock.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::fake_machine::{NodeFixture, ProcessEvent, Script, echo_route, ready_ids};
use nearpath_node::SettleHook;
use nearpath_node::machine::ProcessExit;
use nearpath_types::{
    DesiredFunction, DesiredState, FunctionMap, InstanceState, LogQuery, ObservedFunction,
    StartFailureCause,
};
use tokio::sync::Notify;

async fn new_fixture() -> NodeFixture {
    NodeFixture::new(SettleHook::after_delay(Duration::from_millis(10))).await
}

#[tokio::test(start_paused = true)]
async fn ten_instances_start_in_parallel_with_their_own_addresses() {
    let fixture = new_fixture().await;
    fixture.node.apply_desired(fixture.desired_echo(1, 10, ""));
    let snapshot = fixture.until_ready(10).await;
    let addresses: BTreeSet<_> = echo_route(&snapshot)
        .instances
        .iter()
        .map(|one| one.addr)
        .collect();
    let uids: BTreeSet<_> = fixture
        .machine
        .blueprints()
        .iter()
        .map(|one| one.uid)
        .collect();
    assert_eq!((addresses.len(), uids.len()), (10, 10));
    assert_eq!(fixture.machine.count(ProcessEvent::Launched), 10);
    assert!(
        fixture
            .registry
            .encode()
            .contains("nearpath_instance_starts_total{result=\"ready\"} 10")
    );
    assert!(
        fixture
            .registry
            .encode()
            .contains("nearpath_instances{state=\"ready\"} 10")
    );
}

#[tokio::test(start_paused = true)]
async fn an_unchanged_desired_state_publishes_nothing() {
    let fixture = new_fixture().await;
    fixture.node.apply_desired(fixture.desired_echo(1, 2, ""));
    let before = fixture.until_ready(2).await;
    fixture.node.apply_desired(fixture.desired_echo(1, 2, ""));
    let published = fixture.node.wait_published().await;
    assert_eq!(published, before.version);
}

#[tokio::test(start_paused = true)]
async fn instances_stop_only_after_the_gateway_released_them() {
    let (gate, requested) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let hooks = (gate.clone(), requested.clone());
    let fixture = NodeFixture::new(SettleHook::from_hook(move |_, _| {
        let (gate, requested) = hooks.clone();
        Box::pin(async move {
            requested.notify_one();
            gate.notified().await;
        })
    }))
    .await;
    fixture.node.apply_desired(fixture.desired_echo(1, 2, ""));
    let before = fixture.until_ready(2).await;
    fixture.node.apply_desired(fixture.desired_echo(1, 1, ""));
    requested.notified().await;
    let now = fixture.node.watch_snapshots().borrow().clone();
    let youngest = *ready_ids(&before).iter().max().unwrap();
    let draining: Vec<_> = echo_route(&now)
        .instances
        .iter()
        .filter(|one| one.state == InstanceState::Draining)
        .collect();
    assert_eq!(
        draining.iter().map(|one| one.id).collect::<Vec<_>>(),
        [youngest]
    );
    assert_eq!(fixture.machine.count(ProcessEvent::Terminated), 0);
    gate.notify_one();
    fixture.until_only_ready(1).await;
    assert_eq!(fixture.machine.count(ProcessEvent::Terminated), 1);
    assert_eq!(fixture.machine.count(ProcessEvent::Killed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_rolling_update_keeps_the_number_of_ready_instances() {
    let fixture = new_fixture().await;
    fixture.node.apply_desired(fixture.desired_echo(1, 3, ""));
    let old = ready_ids(&*fixture.until_ready(3).await);
    let mut snapshots = fixture.node.watch_snapshots();
    fixture.node.apply_desired(fixture.desired_echo(2, 3, ""));
    loop {
        snapshots.changed().await.unwrap();
        let snapshot = snapshots.borrow_and_update().clone();
        assert!(ready_ids(&snapshot).len() >= 3, "{snapshot:?}");
        if echo_route(&snapshot)
            .instances
            .iter()
            .all(|one| !old.contains(&one.id))
        {
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_revision_leaves_the_old_one_serving() {
    let fixture = new_fixture().await;
    fixture.machine.script("bad", Script::Crash);
    fixture.node.apply_desired(fixture.desired_echo(1, 2, ""));
    let old = ready_ids(&*fixture.until_ready(2).await);
    fixture
        .node
        .apply_desired(fixture.desired_echo(2, 2, "bad"));
    fixture.machine.until(ProcessEvent::Released, 6).await;
    let now = fixture.node.watch_snapshots().borrow().clone();
    assert_eq!(ready_ids(&now), old);
    assert_eq!(
        echo_route(&now).start_failure,
        None,
        "callers see no failure"
    );
    let start_failure = fixture.start_failure().await;
    assert!(
        start_failure.contains("exit code 1") && start_failure.contains("no module named cart"),
        "{start_failure}"
    );
    fixture.node.apply_desired(fixture.desired_echo(3, 2, ""));
    fixture
        .until(|now| ready_ids(now).len() == 2 && ready_ids(now).iter().all(|id| !old.contains(id)))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_crashing_start_backs_off_and_is_reported_to_callers() {
    let fixture = new_fixture().await;
    fixture.machine.script("bad", Script::Crash);
    fixture
        .node
        .apply_desired(fixture.desired_echo(1, 4, "bad"));
    fixture.machine.until(ProcessEvent::Launched, 12).await;
    let times = fixture.machine.times(ProcessEvent::Launched);
    let pauses: Vec<_> = times[3..]
        .windows(2)
        .map(|pair| (pair[1].0 - pair[0].0).as_millis())
        .collect();
    for (pause, least) in pauses
        .iter()
        .zip([100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000])
    {
        assert!(*pause >= least && *pause < least + 600, "pauses {pauses:?}");
    }
    let snapshot = fixture
        .until(|snapshot| echo_route(snapshot).start_failure.is_some())
        .await;
    let failure = echo_route(&snapshot).start_failure.clone().unwrap();
    assert_eq!(failure.cause, StartFailureCause::Exited);
    assert!(failure.instance.is_some() && failure.retry_after > Some(Duration::from_secs(5)));
    let for_administrator = fixture.start_failure().await;
    assert!(for_administrator.contains("no module named cart"));
    fixture.machine.script("bad", Script::Serve);
    let healed = fixture.until_only_ready(4).await;
    assert_eq!(echo_route(&healed).start_failure, None);
    let observed = fixture.node.watch_observed().borrow().clone();
    assert!(observed.first().unwrap().start_failure.is_none());
    let last = observed.first().unwrap().last_failure.as_ref().unwrap();
    assert!(last.contains("no module named cart"), "{last}");
}

#[tokio::test(start_paused = true)]
async fn a_kill_that_an_instance_survives_is_counted_once_and_does_not_explain_its_end() {
    let fixture = new_fixture().await;
    fixture.machine.script("eats", Script::OomKill);
    fixture
        .node
        .apply_desired(fixture.desired_echo(1, 1, "eats"));
    fixture.until_only_ready(1).await;
    let mut observed = fixture.node.watch_observed();
    let last_failure = |now: &FunctionMap<ObservedFunction>| {
        let last = now.first().and_then(|first| first.last_failure.clone());
        last.unwrap_or_default()
    };
    observed
        .wait_for(|now| last_failure(now).contains("it is a server"))
        .await
        .unwrap();
    let kills = "nearpath_instance_oom_kills_total{function_name=\"echo.openfaas-fn\"} 1\n";
    assert!(fixture.registry.encode().contains(kills));
    assert!(
        observed.borrow().first().unwrap().start_failure.is_none(),
        "it goes on"
    );
    let query = LogQuery {
        function: "echo".parse().unwrap(),
        instance: None,
        tail: None,
        since: None,
        follow: false,
    };
    let mut lines = fixture.node.read_logs(query);
    let mut killed = 0;
    while let Some(line) = lines.recv().await {
        killed += usize::from(line.text.contains("the kernel killed a process"));
    }
    assert_eq!(killed, 1);
    let snapshot = fixture.until_only_ready(1).await;
    let [id] = ready_ids(&snapshot)[..] else {
        panic!("one instance");
    };
    fixture.machine.script("eats", Script::Serve);
    fixture.machine.end(id, ProcessExit::Signal(9));
    observed
        .wait_for(|now| last_failure(now).contains("not for its memory"))
        .await
        .unwrap();
    assert!(
        fixture.registry.encode().contains(kills),
        "not counted again"
    );
}

#[tokio::test(start_paused = true)]
async fn kills_fill_no_log_and_the_last_one_explains_the_end() {
    let fixture = new_fixture().await;
    fixture.machine.script("eats", Script::OomKills);
    fixture
        .node
        .apply_desired(fixture.desired_echo(1, 1, "eats"));
    let snapshot = fixture.until_only_ready(1).await;
    let [id] = ready_ids(&snapshot)[..] else {
        panic!("one instance");
    };
    let kills = |count| {
        let line = format!(
            "nearpath_instance_oom_kills_total{{function_name=\"echo.openfaas-fn\"}} {count}\n"
        );
        fixture.registry.encode().contains(&line)
    };
    let mut observed = fixture.node.watch_observed();
    let has_failure = |now: &FunctionMap<ObservedFunction>, text| {
        let last = now.first().and_then(|first| first.last_failure.as_ref());
        last.is_some_and(|last| last.contains(text))
    };
    observed
        .wait_for(|now| has_failure(now, "the kernel killed a process"))
        .await
        .unwrap();
    nearpath_testkit::eventually("both notes are read", async || kills(2)).await;
    let query = LogQuery {
        function: "echo".parse().unwrap(),
        instance: None,
        tail: None,
        since: None,
        follow: false,
    };
    let mut lines = fixture.node.read_logs(query);
    let mut killed = 0;
    while let Some(line) = lines.recv().await {
        killed += usize::from(line.text.contains("the kernel killed a process"));
    }
    assert_eq!(killed, 1);
    fixture.machine.script("eats", Script::Serve);
    fixture.machine.end(id, ProcessExit::Signal(9));
    observed
        .wait_for(|now| has_failure(now, "ended while it was serving"))
        .await
        .unwrap();
    assert!(kills(3), "the end is counted too");
}

#[tokio::test(start_paused = true)]
async fn an_impossible_start_is_retried_only_after_a_deployment() {
    let fixture = new_fixture().await;
    std::os::unix::fs::symlink("/root/secret", fixture.code().join("link")).unwrap();
    fixture.node.apply_desired(fixture.desired_echo(1, 1, ""));
    let start_failure = fixture.start_failure().await;
    assert!(
        start_failure.contains("outside of the folder")
            && start_failure.contains("until the function is deployed anew")
    );
    fixture.node.apply_desired(fixture.desired_echo(1, 2, "")); // scaling does not deploy again
    fixture
        .until(|snapshot| echo_route(snapshot).replicas == 2)
        .await;
    tokio::time::sleep(Duration::from_secs(3_600)).await; // virtual time, longer than every back-off
    assert!(
        fixture
            .registry
            .encode()
            .contains("nearpath_instance_starts_total{result=\"failed\"} 1\n")
    );
    std::fs::remove_file(fixture.code().join("link")).unwrap();
    fixture.node.apply_desired(fixture.desired_echo(2, 1, ""));
    fixture.until_ready(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_launch_is_reported_and_retried() {
    let fixture = new_fixture().await;
    fixture.machine.script("", Script::Refused);
    fixture.node.apply_desired(fixture.desired_echo(1, 1, ""));
    let start_failure = fixture.start_failure().await;
    assert!(
        start_failure.contains("no more namespaces") && start_failure.contains("nearpath doctor"),
        "{start_failure}"
    );
    fixture.machine.script("", Script::Serve);
    fixture.until_ready(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_instance_is_replaced_at_once_with_another_address() {
    let fixture = new_fixture().await;
    fixture.node.apply_desired(fixture.desired_echo(1, 2, ""));
    let before = fixture.until_ready(2).await;
    let victim = echo_route(&before).instances[0].clone();
    fixture.machine.end(victim.id, ProcessExit::Signal(9));
    let after = fixture
        .until(|now| ready_ids(now).len() == 2 && !ready_ids(now).contains(&victim.id))
        .await;
    assert!(
        echo_route(&after)
            .instances
            .iter()
            .all(|one| one.addr != victim.addr)
    );
    let [.., last] = fixture.machine.times(ProcessEvent::Launched)[..] else {
        panic!("three launches")
    };
    let [died, ..] = fixture.machine.times(ProcessEvent::Released)[..] else {
        panic!("one release")
    };
    assert!(
        last.0 - died.0 < Duration::from_millis(100),
        "the first restart is not delayed"
    );
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_ignores_sigterm_is_killed_at_its_timeout() {
    let fixture = new_fixture().await;
    fixture.machine.script("", Script::Stubborn);
    fixture.node.apply_desired(fixture.desired_echo(1, 1, ""));
    fixture.until_ready(1).await;
    fixture.node.apply_desired(fixture.desired_echo(1, 0, ""));
    fixture.machine.until(ProcessEvent::Released, 1).await;
    let (requested, killed) = (
        fixture.machine.times(ProcessEvent::Terminated)[0],
        fixture.machine.times(ProcessEvent::Killed)[0],
    );
    assert_eq!(
        (killed.0 - requested.0).as_secs(),
        63,
        "write_timeout 60 s, stop_grace 2 s and one more"
    );
    assert_eq!(
        echo_route(&fixture.node.watch_snapshots().borrow()).replicas,
        0,
        "scaled to zero, and still published"
    );
}

#[tokio::test(start_paused = true)]
async fn an_instance_without_notes_is_killed_without_waiting() {
    let fixture = new_fixture().await;
    fixture.machine.script("", Script::Silent);
    fixture.node.apply_desired(fixture.desired_echo(1, 1, ""));
    fixture.machine.until(ProcessEvent::Launched, 1).await;
    let begun = tokio::time::Instant::now();
    fixture.node.drain_and_stop().await;
    assert!(
        begun.elapsed() < Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(
        (
            fixture.machine.count(ProcessEvent::Killed),
            fixture.machine.count(ProcessEvent::Released)
        ),
        (1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn an_instance_whose_watchdog_has_not_begun_is_killed_without_waiting() {
    let fixture = new_fixture().await;
    fixture.machine.script("", Script::Early);
    fixture.node.apply_desired(fixture.desired_echo(1, 1, ""));
    let mut observed = fixture.node.watch_observed();
    let locked_down = |all: &FunctionMap<ObservedFunction>| {
        let instances = all.values().flat_map(|one| &one.instances);
        let mut phases = instances.flat_map(|one| &one.start);
        phases.any(|phase| phase.name == "lockdown")
    };
    observed.wait_for(locked_down).await.unwrap();
    fixture.node.drain_and_stop().await;
    let count = |event| fixture.machine.count(event);
    assert_eq!(
        count(ProcessEvent::Terminated),
        0,
        "the signal would be lost"
    );
    assert_eq!(count(ProcessEvent::Killed), 1);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_never_gets_ready_is_killed() {
    let fixture = new_fixture().await;
    fixture.machine.script("", Script::Silent);
    fixture.node.apply_desired(fixture.desired_echo(1, 1, ""));
    let start_failure = fixture.start_failure().await;
    assert!(
        start_failure.contains("not ready within 40s"),
        "{start_failure}"
    );
    assert_eq!(fixture.machine.count(ProcessEvent::Killed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_removed_function_is_unpublished_at_once_and_drains() {
    let fixture = new_fixture().await;
    fixture.node.apply_desired(fixture.desired_echo(1, 3, ""));
    fixture.until_ready(3).await;
    fixture.node.apply_desired(DesiredState::default());
    fixture
        .until(|snapshot| snapshot.functions.is_empty())
        .await;
    fixture.machine.until(ProcessEvent::Released, 3).await;
    fixture
        .node
        .watch_observed()
        .wait_for(|all| all.is_empty())
        .await
        .unwrap();
    let query = LogQuery {
        function: "echo".parse().unwrap(),
        instance: None,
        tail: None,
        since: None,
        follow: false,
    };
    assert!(fixture.node.read_logs(query).recv().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn stopping_drains_all_instances_in_parallel() {
    let fixture = new_fixture().await;
    fixture.machine.script("", Script::Stubborn);
    fixture.node.apply_desired(fixture.desired_echo(1, 5, ""));
    fixture.until_ready(5).await;
    let begun = tokio::time::Instant::now();
    fixture.node.drain_and_stop().await;
    assert_eq!(fixture.machine.count(ProcessEvent::Released), 5);
    assert_eq!(begun.elapsed().as_secs(), 63, "one timeout, not five");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_node_kills_its_instances() {
    let NodeFixture { machine, node, .. } = {
        let fixture = new_fixture().await;
        fixture.node.apply_desired(fixture.desired_echo(1, 2, ""));
        fixture.until_ready(2).await;
        fixture
    };
    drop(node);
    machine.until(ProcessEvent::Released, 2).await;
    assert_eq!(
        (
            machine.count(ProcessEvent::Killed),
            machine.count(ProcessEvent::Terminated)
        ),
        (2, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn usage_is_summed_over_instances() {
    let fixture = new_fixture().await;
    fixture.node.apply_desired(fixture.desired_echo(1, 2, ""));
    fixture.until_ready(2).await;
    tokio::time::advance(Duration::from_secs(1)).await;
    let usage = fixture.node.read_usage(&"echo".parse().unwrap()).await;
    assert_eq!(usage.total_memory_bytes, f64::from(2 << 20));
    assert!(
        usage.cpu > 500.0 && usage.cpu <= 1_000.0,
        "half a core each since the start: {usage:?}"
    );
    let idle = fixture.node.read_usage(&"echo".parse().unwrap()).await;
    assert_eq!(idle.cpu, 0.0);
}

/// Returns a desired state of `echo` with these annotations.
fn annotated(
    fixture: &NodeFixture,
    revision: u64,
    replicas: u32,
    annotations: &[(&str, &str)],
) -> DesiredState {
    let desired = fixture.desired_echo(revision, replicas, "");
    let mut echo = DesiredFunction::clone(desired.functions.first().unwrap());
    let spec = Arc::make_mut(&mut echo.spec);
    spec.annotations = annotations
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect();
    DesiredState {
        functions: [echo].into_iter().collect(),
        ..DesiredState::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_without_sockmap_is_reported_and_its_instances_use_tcp() {
    let fixture = new_fixture().await;
    fixture.machine.script("", Script::OwnServer);
    let by_sockmap = ("nearpath.io/loopback", "sockmap");
    fixture
        .node
        .apply_desired(annotated(&fixture, 1, 1, &[by_sockmap]));
    fixture.until_ready(1).await;
    let mut observed = fixture.node.watch_observed();
    let has_remark = |now: &FunctionMap<ObservedFunction>| {
        let last = now.first().and_then(|first| first.last_failure.clone());
        last.is_some_and(|last| {
            last.contains("`nearpath.io/loopback: sockmap` is unavailable")
                && last.contains(
                    "run `nearpath doctor`, then deploy again after 10 s: this machine has no BPF",
                )
        })
    };
    observed.wait_for(has_remark).await.unwrap();
}

const LONG_CALLS: (&str, &str) = ("nearpath.io/total-timeout", "5m");
const INVALID_SETTING: (&str, &str) = ("nearpath.io/queue-timeout", "soon");

#[tokio::test(start_paused = true)]
async fn new_instances_start_with_the_last_valid_policy() {
    let fixture = new_fixture().await;
    fixture
        .node
        .apply_desired(annotated(&fixture, 1, 1, &[LONG_CALLS]));
    let old = ready_ids(&*fixture.until_ready(1).await);
    fixture
        .node
        .apply_desired(annotated(&fixture, 2, 1, &[INVALID_SETTING]));
    fixture
        .until(|now| ready_ids(now).len() == 1 && ready_ids(now) != old)
        .await;
    let limits: Vec<_> = fixture
        .machine
        .blueprints()
        .iter()
        .map(|one| one.environment["exec_timeout"].clone())
        .collect();
    assert_eq!(limits, ["300s", "300s"]);
}

#[tokio::test(start_paused = true)]
async fn an_invalid_setting_is_reported_once_for_a_revision() {
    let fixture = new_fixture().await;
    fixture.node.apply_desired(annotated(&fixture, 1, 1, &[]));
    let old = ready_ids(&*fixture.until_ready(1).await);
    let invalid = annotated(&fixture, 2, 1, &[INVALID_SETTING]);
    fixture.node.apply_desired(invalid);
    fixture
        .until(|now| ready_ids(now).len() == 1 && ready_ids(now) != old)
        .await;
    // A second instance, so that the desired state is known to be applied.
    fixture
        .node
        .apply_desired(annotated(&fixture, 2, 2, &[INVALID_SETTING]));
    fixture.until_ready(2).await;
    fixture
        .node
        .apply_desired(annotated(&fixture, 2, 1, &[INVALID_SETTING]));
    fixture.until_only_ready(1).await;
    let observed = fixture.node.watch_observed().borrow().clone();
    assert_eq!(
        observed.first().unwrap().start_failure,
        None,
        "instances are ready"
    );
    let last = observed.first().unwrap().last_failure.clone().unwrap();
    assert!(last.contains("queue-timeout"), "{last}");
}

#[tokio::test(start_paused = true)]
async fn without_a_valid_policy_nothing_is_started() {
    let fixture = new_fixture().await;
    fixture
        .node
        .apply_desired(annotated(&fixture, 1, 2, &[INVALID_SETTING]));
    let failure = fixture.start_failure().await;
    assert!(
        failure.contains("queue-timeout") && failure.contains("nothing is started"),
        "{failure}"
    );
    let snapshot = fixture
        .until(|now| {
            now.functions
                .first()
                .is_some_and(|one| one.start_failure.is_some())
        })
        .await;
    let for_callers = echo_route(&snapshot).start_failure.clone().unwrap();
    assert_eq!(for_callers.cause, StartFailureCause::NotDeployable);
    assert!(for_callers.retry_after.is_some(), "callers do not wait");
    fixture
        .node
        .apply_desired(annotated(&fixture, 2, 2, &[LONG_CALLS]));
    fixture.until_ready(2).await;
    assert_eq!(fixture.machine.count(ProcessEvent::Launched), 2);
}
