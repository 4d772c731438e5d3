//! The next steps for one function: a pure decision over desired and existing instances.
//!
//! [`plan`] is called after every change, so each plan only has to be a safe step forward. New
//! instances start at once and in parallel. An old one is withdrawn only when a new one has
//! replaced it. A revision that never becomes ready leaves the old one serving. [`StartBackoff`]
//! delays starts that keep failing.

mod backoff;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

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

/// Steps to take now, and the time of the next plan without other changes.
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
    let wanted = desired.replicas as usize;
    let (current, old) =
        usable_instances(instances).partition(|one| one.revision == desired.revision);
    let ThawPlan {
        current,
        thawed,
        unneeded,
    } = plan_thaws(current, wanted);
    let starts = plan_starts(&current, wanted, backoff, now);
    let excess = current.len().saturating_sub(wanted);
    // Old ones serve until as many new ones are ready.
    let kept = wanted.saturating_sub(count_ready(&current));
    let actions = [
        thawed,
        starts.actions,
        // Scaling down needs no replacement, so it happens at once.
        withdraw_least_useful(current, excess),
        withdraw_least_useful(unneeded, usize::MAX),
        plan_replacements(old, kept),
    ];
    ReconcilePlan {
        actions: actions.concat(),
        retry_at: starts.retry_at,
    }
}

/// Use of the frozen instances of the desired revision.
struct ThawPlan {
    /// Instances that run, or are going to.
    current: Vec<InstanceView>,
    thawed: Vec<ReconcileAction>,
    /// Instances that stay frozen, though all that are wanted run.
    unneeded: Vec<InstanceView>,
}

/// Plans which frozen instances go on, instead of starts.
fn plan_thaws(instances: Vec<InstanceView>, wanted: usize) -> ThawPlan {
    let is_frozen = |one: &InstanceView| one.state == InstanceState::Frozen;
    let (mut frozen, mut current): (Vec<_>, Vec<_>) = instances.into_iter().partition(is_frozen);
    let missing = wanted.saturating_sub(current.len());
    let unneeded = frozen.split_off(missing.min(frozen.len()));
    let thawed = frozen.iter().map(|one| ReconcileAction::Thaw(one.id));
    let thawed = thawed.collect();
    current.extend(frozen.into_iter().map(|one| InstanceView {
        state: InstanceState::Starting,
        ..one
    }));
    ThawPlan {
        current,
        thawed,
        unneeded,
    }
}

/// Plans the end of all instances, except some of the desired revision that are kept frozen: the
/// oldest, which have the warmest caches.
fn plan_sleep(desired: Option<DesiredInstances>, mut usable: Vec<InstanceView>) -> ReconcilePlan {
    let is_kept = |one: &InstanceView| {
        let can_freeze = matches!(one.state, InstanceState::Frozen | InstanceState::Ready);
        can_freeze && desired.is_some_and(|desired| desired.revision == one.revision)
    };
    // Frozen ones first: they cost nothing to keep.
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
