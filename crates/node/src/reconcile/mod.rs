//! What to do next for one function: a pure decision over what is wanted and what is there.
//!
//! [`plan`] is asked again after every change, so each answer only has to be a safe step in the right direction. New
//! instances start at once and in parallel; an old one is withdrawn only when a new one has taken its place, so a new
//! revision that never gets ready leaves the old one serving. [`Backoff`] slows the starts that keep failing.

mod backoff;
#[cfg(test)]
mod simulation;

use std::cmp::Reverse;
use std::time::Instant;

use nearpath_types::{InstanceId, InstanceState, Revision};

pub use backoff::{Backoff, LONGEST, SHORTEST, STABLE};

/// What should run of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    /// Which version.
    pub revision: Revision,
    /// How many ready instances.
    pub replicas: u32,
}

/// One instance as it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Its id; a greater one is younger.
    pub id: InstanceId,
    /// The version it runs.
    pub revision: Revision,
    /// What may be done with it.
    pub state: InstanceState,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Start so many instances of the wanted revision.
    Start(u32),
    /// Publish it as draining, then tell it to stop.
    Withdraw(InstanceId),
}

/// The steps to take now, and when to ask again if nothing happens before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// In the order in which to take them.
    pub actions: Vec<Action>,
    /// When a start that is held back by the back-off falls due.
    pub retry_at: Option<Instant>,
}

/// Decides. `None` as `want`: the function was removed. `backoff` belongs to the wanted revision.
pub fn plan(want: Option<Want>, seen: &[Seen], backoff: &Backoff, now: Instant) -> Plan {
    let Some(want) = want.filter(|want| want.replicas > 0) else {
        return Plan { actions: withdraw(usable(seen).collect(), usize::MAX), retry_at: None };
    };
    let (current, old): (Vec<_>, Vec<_>) = usable(seen).partition(|one| one.revision == want.revision);
    let wanted = want.replicas as usize;
    let mut plan = starts(&current, wanted, backoff, now);
    let excess = current.len().saturating_sub(wanted);
    plan.actions.extend(withdraw(current.clone(), excess));
    plan.actions.extend(replaced(old, wanted.saturating_sub(ready(&current))));
    plan
}

fn usable(seen: &[Seen]) -> impl Iterator<Item = Seen> {
    seen.iter().copied().filter(|one| one.state != InstanceState::Draining)
}

fn ready(instances: &[Seen]) -> usize {
    instances.iter().filter(|one| one.state == InstanceState::Ready).count()
}

fn starts(current: &[Seen], wanted: usize, backoff: &Backoff, now: Instant) -> Plan {
    if backoff.has_given_up() {
        return Plan::default();
    }
    let missing = wanted.saturating_sub(current.len());
    let count = match backoff.is_probing() {
        true if current.len() > ready(current) => 0, // one attempt at a time until one succeeds
        true => missing.min(1),
        false => missing,
    };
    match (count, backoff.retry_at()) {
        (0, _) => Plan::default(),
        (_, Some(at)) if at > now => Plan { actions: Vec::new(), retry_at: Some(at) },
        _ => Plan { actions: vec![Action::Start(count as u32)], retry_at: None },
    }
}

/// Old instances give way: those that still start at once, ready ones as far as `keep` allows.
fn replaced(old: Vec<Seen>, keep: usize) -> Vec<Action> {
    let excess = old.len() - ready(&old).min(keep);
    withdraw(old, excess)
}

/// The least useful first: those not ready before those that are, younger before older.
fn withdraw(mut from: Vec<Seen>, count: usize) -> Vec<Action> {
    from.sort_by_key(|one| (one.state == InstanceState::Ready, Reverse(one.id)));
    from.iter().take(count).map(|one| Action::Withdraw(one.id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use InstanceState::{Draining, Ready, Starting};

    fn seen(all: &[(u64, u64, InstanceState)]) -> Vec<Seen> {
        all.iter()
            .map(|&(id, revision, state)| Seen { id: InstanceId(id), revision: Revision(revision), state })
            .collect()
    }

    fn decide(revision: u64, replicas: u32, all: &[(u64, u64, InstanceState)]) -> Vec<Action> {
        let want = Want { revision: Revision(revision), replicas };
        plan(Some(want), &seen(all), &Backoff::default(), Instant::now()).actions
    }

    fn out(ids: &[u64]) -> Vec<Action> {
        ids.iter().map(|id| Action::Withdraw(InstanceId(*id))).collect()
    }

    #[test]
    fn scale_up_starts_what_is_missing() {
        assert_eq!(decide(1, 3, &[(1, 1, Ready), (2, 1, Draining)]), [Action::Start(2)]);
    }

    #[test]
    fn scale_down_takes_the_least_useful_first() {
        let all = [(1, 1, Ready), (2, 1, Ready), (3, 1, Starting), (4, 1, Ready)];
        assert_eq!(decide(1, 2, &all), out(&[3, 4]));
        assert_eq!(decide(1, 0, &all), out(&[3, 4, 2, 1]));
    }

    #[test]
    fn an_old_one_leaves_when_a_new_one_is_ready() {
        assert_eq!(decide(2, 2, &[(1, 1, Ready), (2, 1, Ready)]), [Action::Start(2)]);
        assert_eq!(decide(2, 2, &[(1, 1, Ready), (2, 1, Ready), (3, 2, Starting), (4, 2, Starting)]), []);
        assert_eq!(decide(2, 2, &[(1, 1, Ready), (2, 1, Ready), (3, 2, Ready), (4, 2, Starting)]), out(&[2]));
        assert_eq!(decide(2, 2, &[(1, 1, Ready), (3, 2, Ready), (4, 2, Ready)]), out(&[1]));
    }

    #[test]
    fn an_old_one_that_still_starts_is_of_no_use() {
        assert_eq!(decide(2, 1, &[(1, 1, Starting), (2, 2, Starting)]), out(&[1]));
    }

    #[test]
    fn a_removed_function_drains() {
        let all = seen(&[(1, 1, Ready), (2, 2, Starting), (3, 1, Draining)]);
        assert_eq!(plan(None, &all, &Backoff::default(), Instant::now()).actions, out(&[2, 1]));
    }

    #[test]
    fn a_revision_that_was_given_up_is_not_started_and_its_elder_stays() {
        let mut backoff = Backoff::default();
        backoff.give_up();
        let want = Want { revision: Revision(2), replicas: 2 };
        let all = seen(&[(1, 1, Ready), (2, 1, Ready)]);
        assert_eq!(plan(Some(want), &all, &backoff, Instant::now()), Plan::default());
    }

    #[test]
    fn a_failing_revision_is_tried_one_at_a_time() {
        let (start, want) = (Instant::now(), Want { revision: Revision(1), replicas: 3 });
        let mut backoff = Backoff::default();
        backoff.start_failed(start, start);
        let held = plan(Some(want), &[], &backoff, start);
        assert_eq!(held, Plan { actions: vec![], retry_at: Some(start + SHORTEST) });
        assert_eq!(plan(Some(want), &[], &backoff, start + SHORTEST).actions, [Action::Start(1)]);
        let trying = seen(&[(1, 1, Starting)]);
        assert_eq!(plan(Some(want), &trying, &backoff, start + LONGEST).actions, []);
    }
}
