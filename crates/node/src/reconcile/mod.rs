//! The next steps for one function: a pure decision over desired and existing instances.
//!
//! [`plan`] is called after every change, so each plan only has to be a safe step forward. New
//! instances start at once and in parallel. An old one is withdrawn only when a new one has
//! replaced it. A revision that never becomes ready leaves the old one serving. [`StartBackoff`]
//! delays starts that keep failing.

mod backoff;
#[cfg(test)]
mod simulation;

use std::cmp::Reverse;
use std::time::Instant;

use nearpath_types::{InstanceId, InstanceState, Revision};

pub use backoff::{MAX_RETRY_INTERVAL, MIN_RETRY_INTERVAL, STABLE_AGE, StartBackoff};

/// Desired instances of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DesiredInstances {
    /// Desired revision.
    pub revision: Revision,
    /// Number of ready instances.
    pub replicas: u32,
    /// Number of instances that stay frozen while no ready ones are wanted.
    pub frozen: u32,
}

/// An existing instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstanceView {
    /// Id; a greater one is younger.
    pub id: InstanceId,
    /// Its revision.
    pub revision: Revision,
    /// Its state.
    pub state: InstanceState,
}

/// A step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReconcileAction {
    /// Starts so many instances of the desired revision.
    Start(u32),
    /// Publishes the instance as frozen, and stops its processes when it has no open calls.
    Freeze(InstanceId),
    /// Lets a frozen instance go on.
    Thaw(InstanceId),
    /// Publishes the instance as draining, then asks it to stop.
    Withdraw(InstanceId),
}

/// Steps to take now, and the time of the next call without other changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReconcilePlan {
    /// Steps in order.
    pub actions: Vec<ReconcileAction>,
    /// Time of the next start that the back-off delays.
    pub retry_at: Option<Instant>,
}

/// Plans the next steps. `desired` is `None` for a removed function; `backoff` belongs to the
/// desired revision.
pub fn plan(
    desired: Option<DesiredInstances>,
    instances: &[InstanceView],
    backoff: &StartBackoff,
    now: Instant,
) -> ReconcilePlan {
    let Some(desired) = desired.filter(|desired| desired.replicas > 0) else {
        return plan_sleep(desired, usable_instances(instances).collect());
    };
    let (current, old): (Vec<_>, Vec<_>) =
        usable_instances(instances).partition(|one| one.revision == desired.revision);
    let (frozen, mut current): (Vec<_>, Vec<_>) = current
        .into_iter()
        .partition(|one| one.state == InstanceState::Frozen);
    let wanted = desired.replicas as usize;
    let missing = wanted.saturating_sub(current.len());
    let (thawed, unneeded) = frozen.split_at(missing.min(frozen.len()));
    let mut actions: Vec<_> = thawed
        .iter()
        .map(|one| ReconcileAction::Thaw(one.id))
        .collect();
    current.extend(thawed.iter().map(|one| InstanceView {
        state: InstanceState::Starting,
        ..*one
    }));
    let mut plan = plan_starts(&current, wanted, backoff, now);
    actions.append(&mut plan.actions);
    plan.actions = actions;
    let excess = current.len().saturating_sub(wanted);
    // Scaling down needs no replacement, so it happens at once.
    plan.actions
        .extend(withdraw_least_useful(current.clone(), excess));
    plan.actions
        .extend(withdraw_least_useful(unneeded.to_vec(), usize::MAX));
    plan.actions.extend(plan_replacements(
        old,
        // Old ones serve until as many new ones are ready.
        wanted.saturating_sub(count_ready(&current)),
    ));
    plan
}

/// Plans the end of all instances, or that some of the desired revision are kept frozen. Those that have
/// been ready for longest have the warmest caches.
fn plan_sleep(desired: Option<DesiredInstances>, mut usable: Vec<InstanceView>) -> ReconcilePlan {
    let is_kept = |one: &InstanceView| {
        let can_freeze = matches!(one.state, InstanceState::Frozen | InstanceState::Ready);
        can_freeze && desired.is_some_and(|desired| desired.revision == one.revision)
    };
    usable.sort_by_key(|one| (one.state != InstanceState::Frozen, one.id));
    let (kept, mut others): (Vec<_>, Vec<_>) = usable.into_iter().partition(is_kept);
    let count = desired.map_or(0, |desired| desired.frozen as usize);
    let (kept, excess) = kept.split_at(count.min(kept.len()));
    others.extend(excess);
    let awake = kept.iter().filter(|one| one.state == InstanceState::Ready);
    let mut actions: Vec<_> = awake.map(|one| ReconcileAction::Freeze(one.id)).collect();
    actions.extend(withdraw_least_useful(others, usize::MAX));
    ReconcilePlan {
        actions,
        retry_at: None,
    }
}

fn usable_instances(instances: &[InstanceView]) -> impl Iterator<Item = InstanceView> {
    instances
        .iter()
        .copied()
        .filter(|one| one.state != InstanceState::Draining)
}

fn count_ready(instances: &[InstanceView]) -> usize {
    instances
        .iter()
        .filter(|one| one.state == InstanceState::Ready)
        .count()
}

fn plan_starts(
    current: &[InstanceView],
    wanted: usize,
    backoff: &StartBackoff,
    now: Instant,
) -> ReconcilePlan {
    if backoff.has_given_up() {
        return ReconcilePlan::default();
    }
    let missing = wanted.saturating_sub(current.len());
    let count = match backoff.is_probing() {
        // One attempt at a time until one succeeds.
        true if current.len() > count_ready(current) => 0,
        // A failing revision costs one start per delay, whatever number is wanted.
        true => missing.min(1),
        false => missing,
    };
    match (count, backoff.retry_at()) {
        (0, _) => ReconcilePlan::default(),
        (_, Some(at)) if at > now => ReconcilePlan {
            actions: Vec::new(),
            retry_at: Some(at),
        },
        _ => ReconcilePlan {
            actions: vec![ReconcileAction::Start(count as u32)],
            retry_at: None,
        },
    }
}

/// Withdraws old instances: starting ones at once, and ready ones above `keep`.
fn plan_replacements(old: Vec<InstanceView>, keep: usize) -> Vec<ReconcileAction> {
    let excess = old.len() - count_ready(&old).min(keep);
    withdraw_least_useful(old, excess)
}

/// Withdraws the least useful first: unready before ready ones, younger before older ones.
fn withdraw_least_useful(mut from: Vec<InstanceView>, count: usize) -> Vec<ReconcileAction> {
    // Starting ones serve no calls yet, and younger ones have the colder caches.
    from.sort_by_key(|one| (one.state == InstanceState::Ready, Reverse(one.id)));
    from.iter()
        .take(count)
        .map(|one| ReconcileAction::Withdraw(one.id))
        .collect()
}

#[cfg(test)]
mod tests {
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
}
