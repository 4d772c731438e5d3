//! A node in miniature with a virtual clock: instances get ready, fail, die and end their drain in an order that
//! proptest draws, while the plan is asked after every step.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nearpath_types::{InstanceId, InstanceState, Revision};
use proptest::prelude::*;

use super::{Action, Backoff, LONGEST, Plan, Seen, Want, plan};

#[derive(Debug, Clone)]
enum Step {
    Want { revision_step: u64, replicas: u32 },
    Remove,
    Ready(usize),
    Fail(usize),
    Die(usize),
    Drained(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (0u64..2, 0u32..6).prop_map(|(revision_step, replicas)| Step::Want { revision_step, replicas }),
        1 => Just(Step::Remove),
        5 => any::<usize>().prop_map(Step::Ready),
        2 => any::<usize>().prop_map(Step::Fail),
        2 => any::<usize>().prop_map(Step::Die),
        3 => any::<usize>().prop_map(Step::Drained),
        4 => (0u64..3_000).prop_map(Step::Pass),
    ]
}

#[derive(Debug, Clone)]
struct Instance {
    revision: Revision,
    state: InstanceState,
    started: Instant,
    ready: Option<Instant>,
}

struct World {
    now: Instant,
    want: Option<Want>,
    revision: Revision,
    backoff: Backoff,
    instances: BTreeMap<InstanceId, Instance>,
    next: u64,
}

impl World {
    fn new() -> Self {
        let (want, revision) = (None, Revision(1));
        Self { now: Instant::now(), want, revision, backoff: Backoff::default(), instances: BTreeMap::new(), next: 1 }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Want { revision_step, replicas } => self.wish(revision_step, replicas),
            Step::Remove => self.want = None,
            Step::Ready(n) => self.ready(n),
            Step::Fail(n) => self.end(n, InstanceState::Starting),
            Step::Die(n) => self.end(n, InstanceState::Ready),
            Step::Drained(n) => self.end(n, InstanceState::Draining),
            Step::Pass(ms) => self.now += Duration::from_millis(ms),
        }
        self.settle();
    }

    fn wish(&mut self, revision_step: u64, replicas: u32) {
        self.revision.0 += revision_step;
        if revision_step > 0 {
            self.backoff = Backoff::default();
        }
        self.want = Some(Want { revision: self.revision, replicas });
    }

    fn pick(&self, n: usize, state: InstanceState) -> Option<InstanceId> {
        let all: Vec<_> = self.instances.iter().filter(|(_, one)| one.state == state).map(|(id, _)| *id).collect();
        (!all.is_empty()).then(|| all[n % all.len()])
    }

    fn ready(&mut self, n: usize) {
        let Some(id) = self.pick(n, InstanceState::Starting) else { return };
        let one = self.instances.get_mut(&id).unwrap();
        (one.state, one.ready) = (InstanceState::Ready, Some(self.now));
        if one.revision == self.revision {
            self.backoff.became_ready();
        }
    }

    fn end(&mut self, n: usize, state: InstanceState) {
        let Some(id) = self.pick(n, state) else { return };
        let one = self.instances.remove(&id).unwrap();
        match one.ready {
            _ if one.revision != self.revision || state == InstanceState::Draining => {}
            Some(ready) => self.backoff.died(one.started, ready, self.now),
            None => self.backoff.start_failed(one.started, self.now),
        }
    }

    fn count(&self, state: InstanceState) -> u32 {
        self.instances.values().filter(|one| one.state == state).count() as u32
    }

    fn decide(&self) -> Plan {
        let all = self.instances.iter();
        let seen: Vec<_> = all.map(|(id, one)| Seen { id: *id, revision: one.revision, state: one.state }).collect();
        plan(self.want, &seen, &self.backoff, self.now)
    }

    /// Carries the plan out and holds it against the promises.
    fn settle(&mut self) {
        let before = self.count(InstanceState::Ready);
        let plan = self.decide();
        plan.actions.iter().for_each(|action| self.act(*action));
        let wanted = self.want.map_or(0, |want| want.replicas);
        assert!(self.count(InstanceState::Ready) >= before.min(wanted), "ready instances were given up too early");
        let of_new = self.instances.values().filter(|one| one.revision == self.revision);
        assert!(of_new.filter(|one| one.state != InstanceState::Draining).count() as u32 <= wanted);
        assert_eq!(self.decide().actions, [], "a plan that is carried out leaves nothing to do");
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Start(count) => (0..count).for_each(|_| self.start()),
            Action::Withdraw(id) => {
                let one = self.instances.get_mut(&id).expect("only what exists is withdrawn");
                assert_ne!(one.state, InstanceState::Draining, "nothing is withdrawn twice");
                one.state = InstanceState::Draining;
            }
        }
    }

    fn start(&mut self) {
        assert!(self.backoff.retry_at().is_none_or(|at| at <= self.now), "started inside the pause");
        let want = self.want.expect("only what is wanted is started");
        let (state, started) = (InstanceState::Starting, self.now);
        self.instances.insert(InstanceId(self.next), Instance { revision: want.revision, state, started, ready: None });
        self.next += 1;
    }

    /// From now on every start succeeds and every drain ends.
    fn calm_down(&mut self) {
        for _ in 0..40 {
            self.take(Step::Pass(LONGEST.as_millis() as u64));
            self.take(Step::Ready(0));
            self.instances.retain(|_, one| one.state != InstanceState::Draining);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_history_converges_once_starts_succeed(steps in prop::collection::vec(step(), 0..80)) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.take(step));
        world.calm_down();
        let wanted = world.want.map_or(0, |want| want.replicas);
        prop_assert_eq!(world.count(InstanceState::Ready), wanted);
        prop_assert_eq!(world.instances.len() as u32, wanted);
        prop_assert!(world.instances.values().all(|one| one.revision == world.revision));
    }

    #[test]
    fn a_failing_revision_leaves_the_old_one_serving(replicas in 1u32..6, failures in 1usize..20) {
        let mut world = World::new();
        world.take(Step::Want { revision_step: 0, replicas });
        (0..replicas).for_each(|_| world.take(Step::Ready(0)));
        world.take(Step::Want { revision_step: 1, replicas });
        for _ in 0..failures {
            world.take(Step::Fail(0));
            world.take(Step::Pass(LONGEST.as_millis() as u64));
            prop_assert_eq!(world.count(InstanceState::Ready), replicas);
        }
        let attempts = world.next - 1 - u64::from(replicas);
        prop_assert!(attempts <= failures as u64 + u64::from(replicas), "{attempts} attempts for {failures} failures");
    }
}
