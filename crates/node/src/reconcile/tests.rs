//! Plans of single situations.

use super::*;
use InstanceState::{Draining, Frozen, Ready, Starting};

fn views(all: &[(u64, u64, InstanceState)]) -> Vec<InstanceView> {
    all.iter()
        .map(|&(id, revision, state)| InstanceView {
            id: InstanceId(id),
            revision: Revision(revision),
            state,
        })
        .collect()
}

fn plan_actions(
    revision: u64,
    replicas: u32,
    all: &[(u64, u64, InstanceState)],
) -> Vec<ReconcileAction> {
    let desired = DesiredInstances {
        revision: Revision(revision),
        replicas,
        frozen: 0,
    };
    plan(
        Some(desired),
        &views(all),
        &StartBackoff::default(),
        Instant::now(),
    )
    .actions
}

fn withdrawals(ids: &[u64]) -> Vec<ReconcileAction> {
    ids.iter()
        .map(|id| ReconcileAction::Withdraw(InstanceId(*id)))
        .collect()
}

#[test]
fn scale_up_starts_what_is_missing() {
    assert_eq!(
        plan_actions(1, 3, &[(1, 1, Ready), (2, 1, Draining)]),
        [ReconcileAction::Start(2)]
    );
}

#[test]
fn scale_down_takes_the_least_useful_first() {
    let all = [
        (1, 1, Ready),
        (2, 1, Ready),
        (3, 1, Starting),
        (4, 1, Ready),
    ];
    assert_eq!(plan_actions(1, 2, &all), withdrawals(&[3, 4]));
    assert_eq!(plan_actions(1, 0, &all), withdrawals(&[3, 4, 2, 1]));
}

#[test]
fn sleeping_functions_keep_some_instances_frozen() {
    let freeze = |frozen, all: &[(u64, u64, InstanceState)]| {
        let desired = DesiredInstances {
            revision: Revision(2),
            replicas: 0,
            frozen,
        };
        let (backoff, now) = (StartBackoff::default(), Instant::now());
        plan(Some(desired), &views(all), &backoff, now).actions
    };
    let all = [
        (1, 1, Ready),
        (2, 2, Ready),
        (3, 2, Ready),
        (4, 2, Starting),
    ];
    let mut expected = vec![ReconcileAction::Freeze(InstanceId(2))];
    expected.extend(withdrawals(&[4, 3, 1]));
    assert_eq!(freeze(1, &all), expected);
    // Nothing to do, more than wanted, and after the time for which they are kept.
    assert_eq!(freeze(1, &[(2, 2, Frozen)]), []);
    assert_eq!(
        freeze(1, &[(2, 2, Ready), (3, 2, Frozen)]),
        withdrawals(&[2])
    );
    assert_eq!(freeze(0, &[(2, 2, Frozen)]), withdrawals(&[2]));
}

#[test]
fn frozen_instances_are_thawed_before_others_start() {
    let thaw = |id| ReconcileAction::Thaw(InstanceId(id));
    let all = [(1, 1, Frozen), (2, 1, Frozen)];
    assert_eq!(
        plan_actions(1, 3, &all),
        [thaw(1), thaw(2), ReconcileAction::Start(1)]
    );
    assert_eq!(
        plan_actions(1, 1, &all),
        [vec![thaw(1)], withdrawals(&[2])].concat()
    );
    assert_eq!(
        plan_actions(1, 1, &[(1, 1, Frozen), (2, 1, Ready)]),
        withdrawals(&[1])
    );
    // One of another revision is of no use.
    assert_eq!(
        plan_actions(2, 1, &[(1, 1, Frozen)]),
        [vec![ReconcileAction::Start(1)], withdrawals(&[1])].concat()
    );
}

#[test]
fn an_old_instance_leaves_when_a_new_one_is_ready() {
    assert_eq!(
        plan_actions(2, 2, &[(1, 1, Ready), (2, 1, Ready)]),
        [ReconcileAction::Start(2)]
    );
    assert_eq!(
        plan_actions(
            2,
            2,
            &[
                (1, 1, Ready),
                (2, 1, Ready),
                (3, 2, Starting),
                (4, 2, Starting)
            ]
        ),
        []
    );
    assert_eq!(
        plan_actions(
            2,
            2,
            &[
                (1, 1, Ready),
                (2, 1, Ready),
                (3, 2, Ready),
                (4, 2, Starting)
            ]
        ),
        withdrawals(&[2])
    );
    assert_eq!(
        plan_actions(2, 2, &[(1, 1, Ready), (3, 2, Ready), (4, 2, Ready)]),
        withdrawals(&[1])
    );
}

#[test]
fn an_old_starting_instance_is_withdrawn() {
    assert_eq!(
        plan_actions(2, 1, &[(1, 1, Starting), (2, 2, Starting)]),
        withdrawals(&[1])
    );
}

#[test]
fn a_removed_function_drains() {
    let all = views(&[(1, 1, Ready), (2, 2, Starting), (3, 1, Draining)]);
    assert_eq!(
        plan(None, &all, &StartBackoff::default(), Instant::now()).actions,
        withdrawals(&[2, 1])
    );
}

#[test]
fn a_given_up_revision_leaves_the_old_one_running() {
    let mut backoff = StartBackoff::default();
    backoff.give_up();
    let desired = DesiredInstances {
        revision: Revision(2),
        replicas: 2,
        frozen: 0,
    };
    let all = views(&[(1, 1, Ready), (2, 1, Ready)]);
    assert_eq!(
        plan(Some(desired), &all, &backoff, Instant::now()),
        ReconcilePlan::default()
    );
}

#[test]
fn a_failing_revision_is_tried_one_at_a_time() {
    let (start, desired) = (
        Instant::now(),
        DesiredInstances {
            revision: Revision(1),
            replicas: 3,
            frozen: 0,
        },
    );
    let mut backoff = StartBackoff::default();
    backoff.record_failed_start(start, start);
    let held = plan(Some(desired), &[], &backoff, start);
    assert_eq!(
        held,
        ReconcilePlan {
            actions: vec![],
            retry_at: Some(start + MIN_RETRY_INTERVAL)
        }
    );
    assert_eq!(
        plan(Some(desired), &[], &backoff, start + MIN_RETRY_INTERVAL).actions,
        [ReconcileAction::Start(1)]
    );
    let trying = views(&[(1, 1, Starting)]);
    assert_eq!(
        plan(Some(desired), &trying, &backoff, start + MAX_RETRY_INTERVAL).actions,
        []
    );
}
