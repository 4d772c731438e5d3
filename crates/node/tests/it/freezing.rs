//! Freezing of instances by the agent, on a machine without a kernel.

use std::time::Duration;

use nearpath_node::SettleHook;
use nearpath_types::{InstanceState, RoutingSnapshot};
use tokio::sync::watch;

use crate::fake_machine::{NodeFixture, ProcessEvent, Script, echo_route, ready_ids};

async fn until_state(fixture: &NodeFixture, state: InstanceState) {
    let has_state = |snapshot: &RoutingSnapshot| {
        let mut functions = snapshot.functions.values();
        functions.any(|echo| echo.instances.iter().any(|one| one.state == state))
    };
    fixture.until(has_state).await;
}

async fn start_with(script: Script, settle: SettleHook) -> NodeFixture {
    let fixture = NodeFixture::new(settle).await;
    fixture.machine.script("one", script);
    fixture.node.apply_desired(fixture.frozen_echo(1, 1, "one"));
    fixture.until_ready(1).await;
    fixture.node.apply_desired(fixture.frozen_echo(1, 0, "one"));
    fixture
}

#[tokio::test(start_paused = true)]
async fn a_frozen_instance_is_thawed_for_the_next_wake_up() {
    let fixture = start_with(
        Script::Serve,
        SettleHook::after_delay(Duration::from_millis(10)),
    )
    .await;
    fixture.machine.until(ProcessEvent::Frozen, 1).await;
    fixture.node.apply_desired(fixture.frozen_echo(1, 1, "one"));
    fixture.until_ready(1).await;
    assert_eq!(fixture.machine.count(ProcessEvent::Thawed), 1);
    assert_eq!(fixture.machine.count(ProcessEvent::Launched), 1);
}

/// Its callers would wait in vain.
#[tokio::test(start_paused = true)]
async fn an_instance_that_cannot_be_thawed_is_replaced() {
    let fixture = start_with(
        Script::Unthawable,
        SettleHook::after_delay(Duration::from_millis(10)),
    )
    .await;
    fixture.machine.until(ProcessEvent::Frozen, 1).await;
    let (_, first) = fixture.machine.times(ProcessEvent::Launched)[0];
    fixture.node.apply_desired(fixture.frozen_echo(1, 1, "one"));
    let snapshot = fixture.until_ready(1).await;
    assert_ne!(ready_ids(&snapshot), [first]);
    assert_eq!(fixture.machine.count(ProcessEvent::Killed), 1);
}

#[tokio::test(start_paused = true)]
async fn an_instance_whose_calls_do_not_end_stops() {
    let fixture = start_with(
        Script::Busy,
        SettleHook::after_delay(Duration::from_millis(10)),
    )
    .await;
    fixture.machine.until(ProcessEvent::Terminated, 1).await;
    fixture
        .until(|snapshot| echo_route(snapshot).instances.is_empty())
        .await;
    assert_eq!(fixture.machine.count(ProcessEvent::Frozen), 0);
}

/// The gateway may have chosen it for a call just before.
#[tokio::test(start_paused = true)]
async fn an_instance_that_is_not_frozen_yet_stops_after_its_callers_have_left() {
    let has_settled = watch::Sender::new(false);
    let settled = has_settled.clone();
    let settle = SettleHook::from_hook(move |_, _| {
        let mut settled = settled.subscribe();
        Box::pin(async move { drop(settled.wait_for(|is_settled| *is_settled).await) })
    });
    let fixture = start_with(Script::Serve, settle).await;
    until_state(&fixture, InstanceState::Frozen).await;
    fixture.node.apply_desired(fixture.frozen_echo(2, 1, "two"));
    until_state(&fixture, InstanceState::Draining).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.machine.count(ProcessEvent::Terminated), 0);
    has_settled.send_replace(true);
    fixture.machine.until(ProcessEvent::Terminated, 1).await;
}
