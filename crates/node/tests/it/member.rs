//! A node among others: functions of other nodes are routes without instances.

use std::sync::Arc;
use std::time::Duration;

use crate::fake_machine::{NodeFixture, ProcessEvent, echo_route, ready_ids};
use nearpath_node::SettleHook;
use nearpath_types::policy::{CHAIN, NODES};
use nearpath_types::{DesiredFunction, DesiredState, FunctionSpec};

/// Starts node `a`.
async fn member_fixture() -> NodeFixture {
    NodeFixture::with_config(|config| {
        config.settle = SettleHook::after_delay(Duration::from_millis(10));
        config.member_name = Some("a".parse().unwrap());
    })
    .await
}

/// Two replicas of `echo`, in a chain, on these nodes.
fn desired_on(fixture: &NodeFixture, revision: u64, nodes: &str) -> DesiredState {
    let state = fixture.desired_echo(revision, 2, "");
    let echo = state.functions.first().unwrap();
    let mut spec = FunctionSpec::clone(&echo.spec);
    spec.annotations.insert(NODES.into(), nodes.into());
    spec.annotations.insert(CHAIN.into(), "shop".into());
    let placed = DesiredFunction {
        spec: Arc::new(spec),
        ..DesiredFunction::clone(echo)
    };
    DesiredState {
        functions: [placed].into_iter().collect(),
        ..DesiredState::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_function_of_another_node_is_a_route_only() {
    let fixture = member_fixture().await;
    fixture.node.apply_desired(desired_on(&fixture, 1, "b"));
    fixture.node.wait_published().await;
    let snapshot = fixture.node.watch_snapshots().borrow().clone();
    let route = echo_route(&snapshot);
    assert!(!route.runs_here && route.instances.is_empty());
    assert_eq!(route.start_failure, None);
    assert_eq!(fixture.machine.count(ProcessEvent::Launched), 0);
}

#[tokio::test(start_paused = true)]
async fn a_function_that_moves_away_drains_and_may_return() {
    let fixture = member_fixture().await;
    fixture.node.apply_desired(desired_on(&fixture, 1, "a, b"));
    assert!(echo_route(&*fixture.until_ready(2).await).runs_here);
    fixture.node.apply_desired(desired_on(&fixture, 2, "b"));
    let gone = fixture
        .until(|snapshot| echo_route(snapshot).instances.is_empty())
        .await;
    assert!(!echo_route(&gone).runs_here);
    assert_eq!(fixture.machine.count(ProcessEvent::Terminated), 2);
    assert_eq!(fixture.machine.count(ProcessEvent::Killed), 0);
    fixture.node.apply_desired(desired_on(&fixture, 3, "a"));
    let back = fixture.until_only_ready(2).await;
    assert!(echo_route(&back).runs_here && ready_ids(&back).len() == 2);
}

#[tokio::test(start_paused = true)]
async fn a_node_without_others_runs_every_function() {
    let fixture = NodeFixture::new(SettleHook::after_delay(Duration::from_millis(10))).await;
    fixture.node.apply_desired(desired_on(&fixture, 1, "b"));
    assert!(echo_route(&*fixture.until_ready(2).await).runs_here);
}
