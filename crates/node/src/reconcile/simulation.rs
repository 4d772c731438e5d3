//! A simulated node with a virtual clock.
//!
//! Instances become ready, fail, die and finish draining in random order, and the plan runs after
//! every step.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nearpath_types::{InstanceId, InstanceState, Revision};
use proptest::prelude::*;

use super::{
    DesiredInstances, InstanceView, MAX_RETRY_INTERVAL, ReconcileAction, ReconcilePlan,
    StartBackoff, plan,
};

#[derive(Debug, Clone)]
enum SimStep {
    Want {
        revision_step: u64,
        replicas: u32,
        frozen: u32,
    },
    Remove,
    Ready(usize),
    Fail(usize),
    Die(usize),
    Drained(usize),
    Pass(u64),
}

fn any_step() -> impl Strategy<Value = SimStep> {
    prop_oneof![
        2 => (0u64..2, 0u32..6, 0u32..3).prop_map(|(revision_step, replicas, frozen)| SimStep::Want { revision_step, replicas, frozen }),
        1 => Just(SimStep::Remove),
        5 => any::<usize>().prop_map(SimStep::Ready),
        2 => any::<usize>().prop_map(SimStep::Fail),
        2 => any::<usize>().prop_map(SimStep::Die),
        3 => any::<usize>().prop_map(SimStep::Drained),
        4 => (0u64..3_000).prop_map(SimStep::Pass),
    ]
}

#[derive(Debug, Clone)]
struct SimInstance {
    revision: Revision,
    state: InstanceState,
    started: Instant,
    ready: Option<Instant>,
}

struct SimNode {
    now: Instant,
    want: Option<DesiredInstances>,
    revision: Revision,
    backoff: StartBackoff,
    instances: BTreeMap<InstanceId, SimInstance>,
    next: u64,
}

impl SimNode {
    fn new() -> Self {
        let (want, revision) = (None, Revision(1));
        Self {
            now: Instant::now(),
            want,
            revision,
            backoff: StartBackoff::default(),
            instances: BTreeMap::new(),
            next: 1,
        }
    }

    fn apply_step(&mut self, step: SimStep) {
        match step {
            SimStep::Want {
                revision_step,
                replicas,
                frozen,
            } => self.change_desired(revision_step, replicas, frozen),
            SimStep::Remove => self.want = None,
            SimStep::Ready(n) => self.make_ready(n),
            SimStep::Fail(n) => self.end_instance(n, InstanceState::Starting),
            SimStep::Die(n) => self.end_instance(n, InstanceState::Ready),
            SimStep::Drained(n) => self.end_instance(n, InstanceState::Draining),
            SimStep::Pass(ms) => self.now += Duration::from_millis(ms),
        }
        self.carry_out_plan();
    }

    fn change_desired(&mut self, revision_step: u64, replicas: u32, frozen: u32) {
        self.revision.0 += revision_step;
        if revision_step > 0 {
            self.backoff = StartBackoff::default();
        }
        self.want = Some(DesiredInstances {
            revision: self.revision,
            replicas,
            frozen,
        });
    }

    fn pick_instance(&self, n: usize, state: InstanceState) -> Option<InstanceId> {
        let all: Vec<_> = self
            .instances
            .iter()
            .filter(|(_, one)| one.state == state)
            .map(|(id, _)| *id)
            .collect();
        (!all.is_empty()).then(|| all[n % all.len()])
    }

    fn make_ready(&mut self, n: usize) {
        let Some(id) = self.pick_instance(n, InstanceState::Starting) else {
            return;
        };
        let one = self.instances.get_mut(&id).unwrap();
        (one.state, one.ready) = (InstanceState::Ready, Some(self.now));
        if one.revision == self.revision {
            self.backoff.record_ready();
        }
    }

    fn end_instance(&mut self, n: usize, state: InstanceState) {
        let Some(id) = self.pick_instance(n, state) else {
            return;
        };
        let one = self.instances.remove(&id).unwrap();
        match one.ready {
            _ if one.revision != self.revision || state == InstanceState::Draining => {}
            Some(ready) => self.backoff.record_death(one.started, ready, self.now),
            None => self.backoff.record_failed_start(one.started, self.now),
        }
    }

    fn count_in_state(&self, state: InstanceState) -> u32 {
        self.instances
            .values()
            .filter(|one| one.state == state)
            .count() as u32
    }

    fn current_plan(&self) -> ReconcilePlan {
        let all = self.instances.iter();
        let seen: Vec<_> = all
            .map(|(id, one)| InstanceView {
                id: *id,
                revision: one.revision,
                state: one.state,
            })
            .collect();
        plan(self.want, &seen, &self.backoff, self.now)
    }

    /// Carries out the plan and checks its guarantees.
    fn carry_out_plan(&mut self) {
        let before = self.count_in_state(InstanceState::Ready);
        let plan = self.current_plan();
        plan.actions
            .iter()
            .for_each(|action| self.apply_action(*action));
        let replicas = self.want.map_or(0, |want| want.replicas);
        let frozen = self.max_frozen();
        assert!(
            self.count_in_state(InstanceState::Ready) >= before.min(replicas),
            "ready instances were withdrawn too early"
        );
        let of_new = self
            .instances
            .values()
            .filter(|one| one.revision == self.revision);
        assert!(
            of_new
                .filter(|one| one.state != InstanceState::Draining)
                .count() as u32
                <= replicas + frozen
        );
        assert!(self.count_in_state(InstanceState::Frozen) <= frozen);
        assert_eq!(
            self.current_plan().actions,
            [],
            "a second plan has no steps"
        );
    }

    /// Number of instances that may be frozen.
    fn max_frozen(&self) -> u32 {
        let asleep = self.want.filter(|want| want.replicas == 0);
        asleep.map_or(0, |want| want.frozen)
    }

    fn change_state(&mut self, id: InstanceId, from: InstanceState, to: InstanceState) {
        let one = self.instances.get_mut(&id).expect("it exists");
        assert_eq!(std::mem::replace(&mut one.state, to), from);
    }

    fn apply_action(&mut self, action: ReconcileAction) {
        match action {
            ReconcileAction::Start(count) => (0..count).for_each(|_| self.start_instance()),
            ReconcileAction::Freeze(id) => {
                self.change_state(id, InstanceState::Ready, InstanceState::Frozen)
            }
            ReconcileAction::Thaw(id) => {
                self.change_state(id, InstanceState::Frozen, InstanceState::Starting)
            }
            ReconcileAction::Withdraw(id) => {
                let one = self
                    .instances
                    .get_mut(&id)
                    .expect("only existing instances are withdrawn");
                assert_ne!(
                    one.state,
                    InstanceState::Draining,
                    "no instance is withdrawn twice"
                );
                one.state = InstanceState::Draining;
            }
        }
    }

    fn start_instance(&mut self) {
        assert!(
            self.backoff.retry_at().is_none_or(|at| at <= self.now),
            "started during the back-off"
        );
        let want = self.want.expect("only desired instances are started");
        let (state, started) = (InstanceState::Starting, self.now);
        self.instances.insert(
            InstanceId(self.next),
            SimInstance {
                revision: want.revision,
                state,
                started,
                ready: None,
            },
        );
        self.next += 1;
    }

    /// Lets every start succeed and every drain end from now on.
    fn calm_down(&mut self) {
        for _ in 0..40 {
            self.apply_step(SimStep::Pass(MAX_RETRY_INTERVAL.as_millis() as u64));
            self.apply_step(SimStep::Ready(0));
            self.instances
                .retain(|_, one| one.state != InstanceState::Draining);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_history_converges_once_starts_succeed(steps in prop::collection::vec(any_step(), 0..80)) {
        let mut node = SimNode::new();
        steps.into_iter().for_each(|step| node.apply_step(step));
        node.calm_down();
        let replicas = node.want.map_or(0, |want| want.replicas);
        prop_assert_eq!(node.count_in_state(InstanceState::Ready), replicas);
        let frozen = node.count_in_state(InstanceState::Frozen);
        prop_assert!(frozen <= node.max_frozen());
        prop_assert_eq!(node.instances.len() as u32, replicas + frozen);
        prop_assert!(node.instances.values().all(|one| one.revision == node.revision));
    }

    #[test]
    fn a_failing_revision_leaves_the_old_one_serving(replicas in 1u32..6, failures in 1usize..20) {
        let mut node = SimNode::new();
        node.apply_step(SimStep::Want { revision_step: 0, replicas, frozen: 0 });
        (0..replicas).for_each(|_| node.apply_step(SimStep::Ready(0)));
        node.apply_step(SimStep::Want { revision_step: 1, replicas, frozen: 0 });
        for _ in 0..failures {
            node.apply_step(SimStep::Fail(0));
            node.apply_step(SimStep::Pass(MAX_RETRY_INTERVAL.as_millis() as u64));
            prop_assert_eq!(node.count_in_state(InstanceState::Ready), replicas);
        }
        let attempts = node.next - 1 - u64::from(replicas);
        prop_assert!(attempts <= failures as u64 + u64::from(replicas), "{attempts} attempts for {failures} failures");
    }
}
