//! Tests of the gate against a model and with many threads.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU32;
use std::task::Waker;

fn source() -> SourceNetwork {
    source_of(1)
}

fn source_of(host: u8) -> SourceNetwork {
    SourceNetwork::of([127, 0, 0, host].into())
}

fn holds_nothing(gate: &AdmissionGate) -> bool {
    gate.load_counts() == (0, 0) && gate.locked.lock().unwrap().shares.is_empty()
}

#[derive(Debug, Clone)]
enum GateStep {
    Enter,
    EnterBelowHalf,
    Leave(usize),
    Abandon(usize),
    Return(usize),
    Forgive(usize),
    Resize(u32, u32),
}

fn any_steps() -> impl Strategy<Value = Vec<GateStep>> {
    let step = prop_oneof![
        5 => Just(GateStep::Enter),
        1 => Just(GateStep::EnterBelowHalf),
        3 => (0usize..50).prop_map(GateStep::Leave),
        1 => (0usize..50).prop_map(GateStep::Abandon),
        1 => (0usize..50).prop_map(GateStep::Return),
        1 => (0usize..50).prop_map(GateStep::Forgive),
        1 => (0u32..6, 0u32..6).prop_map(|(capacity, bound)| GateStep::Resize(capacity, bound)),
        1 => (0u32..6).prop_map(|bound| GateStep::Resize(UNLIMITED, bound)),
    ];
    proptest::collection::vec(step, 0..200)
}

struct GateModel {
    gate: Arc<AdmissionGate>,
    capacity: u32,
    max_waiting: u32,
    permits: Vec<AdmissionPermit>,
    waiting: VecDeque<GateWaiter>,
}

impl GateModel {
    fn apply_step(&mut self, step: GateStep) {
        match step {
            GateStep::Enter => self.enter_gate(),
            GateStep::EnterBelowHalf => {
                let may_enter =
                    self.waiting.is_empty() && self.permits.len() < self.capacity as usize / 2;
                let entered = self.gate.try_enter_below_half(source());
                assert_eq!(entered.is_some(), may_enter);
                self.permits.extend(entered);
            }
            GateStep::Leave(i) => drop(take_nth(&mut self.permits, i)),
            GateStep::Forgive(i) => {
                if let Some(permit) = take_nth(&mut self.permits, i) {
                    self.gate.release_withdrawn(1);
                    drop(permit.disarm());
                }
            }
            GateStep::Return(i) => {
                if let Some(permit) = take_nth(&mut self.permits, i) {
                    self.waiting
                        .push_front(AdmissionGate::requeue_first(permit, source()).unwrap());
                }
            }
            GateStep::Abandon(i) if !self.waiting.is_empty() => {
                drop(self.waiting.remove(i % self.waiting.len()))
            }
            GateStep::Abandon(_) => {}
            GateStep::Resize(capacity, bound) => {
                (self.capacity, self.max_waiting) = (capacity, bound);
                self.gate.set_limits(capacity, bound);
            }
        }
    }

    fn enter_gate(&mut self) {
        match self.gate.enter_gate(source()) {
            GateEntry::Admitted(permit) => {
                assert!(self.waiting.is_empty(), "overtook waiting requests");
                self.permits.push(permit);
                assert!(
                    self.permits.len() <= self.capacity as usize,
                    "above the limit"
                );
            }
            GateEntry::Queued(waiter, first) => {
                assert_eq!(first, self.waiting.is_empty());
                assert!(
                    self.waiting.len() < self.max_waiting as usize,
                    "above the bound"
                );
                self.waiting.push_back(waiter);
            }
            GateEntry::Full => assert!(self.waiting.len() >= self.max_waiting as usize),
            GateEntry::Closed => panic!("the gate is open"),
        }
    }

    /// Checks that requests are admitted in order, none waits while there is capacity, and no
    /// permit is lost.
    fn check_invariants(&mut self) {
        let before = self.permits.len();
        let mut admitted = self
            .waiting
            .iter_mut()
            .map(try_take_permit)
            .collect::<Vec<_>>();
        let n = admitted
            .iter()
            .take_while(|permit| permit.is_some())
            .count();
        assert!(
            admitted[n..].iter().all(Option::is_none),
            "not in the order in which they came"
        );
        self.permits.extend(admitted.drain(..n).flatten());
        self.waiting.drain(..n);
        assert!(
            n == 0 || self.permits.len() <= before.max(self.capacity as usize),
            "above the limit"
        );
        assert!(
            self.waiting.is_empty() || self.permits.len() >= self.capacity as usize,
            "stranded"
        );
        assert_eq!(
            self.gate.load_counts(),
            (self.permits.len() as u32, self.waiting.len()),
            "a permit was lost or made"
        );
    }
}

fn take_nth(permits: &mut Vec<AdmissionPermit>, i: usize) -> Option<AdmissionPermit> {
    (!permits.is_empty()).then(|| permits.swap_remove(i % permits.len()))
}

fn try_take_permit(waiter: &mut GateWaiter) -> Option<AdmissionPermit> {
    match Pin::new(waiter).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(permit)) => Some(permit),
        _ => None,
    }
}

proptest! {
    #[test]
    fn the_limit_holds_and_every_waiter_is_admitted(steps in any_steps()) {
        let (capacity, max_waiting) = (2, 3);
        let gate = AdmissionGate::new(capacity, max_waiting);
        let mut model = GateModel { gate, capacity, max_waiting, permits: Vec::new(), waiting: VecDeque::new() };
        for step in steps {
            model.apply_step(step);
            model.check_invariants();
        }
        let gate = model.gate.clone();
        drop(model);
        prop_assert!(holds_nothing(&gate));
    }
}

#[test]
fn a_permit_for_a_dropped_waiter_goes_to_the_next() {
    let gate = AdmissionGate::new(1, 2);
    let GateEntry::Admitted(first) = gate.enter_gate(source()) else {
        panic!()
    };
    let GateEntry::Queued(second, true) = gate.enter_gate(source()) else {
        panic!()
    };
    let GateEntry::Queued(mut third, false) = gate.enter_gate(source()) else {
        panic!()
    };
    drop(first); // the permit goes to the second
    drop(second);
    assert!(try_take_permit(&mut third).is_some());
}

#[test]
fn a_closed_gate_fails_every_waiter() {
    let gate = AdmissionGate::new(0, 2);
    let GateEntry::Queued(mut waiter, _) = gate.enter_gate(source()) else {
        panic!()
    };
    gate.close_gate();
    assert!(matches!(
        Pin::new(&mut waiter).poll(&mut Context::from_waker(Waker::noop())),
        Poll::Ready(Err(GateRefusal::Closed))
    ));
    assert!(matches!(gate.enter_gate(source()), GateEntry::Closed));
}

#[test]
fn a_displaced_waiter_hears_it() {
    let gate = AdmissionGate::new(0, 2);
    let waiters = (0..2).map(|_| match gate.enter_gate(source()) {
        GateEntry::Queued(waiter, _) => waiter,
        entry => panic!("{entry:?}"),
    });
    let mut waiters: Vec<_> = waiters.collect();
    let displacing = gate.enter_gate(source_of(2));
    assert!(matches!(displacing, GateEntry::Queued(..)));
    let poll = Pin::new(&mut waiters[1]).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(poll, Poll::Ready(Err(GateRefusal::Displaced))));
    assert!(matches!(gate.enter_gate(source()), GateEntry::Full));
}

/// Enters as often as the gate admits at once.
fn enter_all(gate: &Arc<AdmissionGate>, source: SourceNetwork) -> Vec<AdmissionPermit> {
    std::iter::from_fn(|| gate.try_enter(source)).collect()
}

#[test]
fn a_source_whose_places_stay_taken_keeps_no_other_out() {
    let gate = AdmissionGate::new(16, 100);
    let (slow, prompt) = (source_of(1), source_of(2));
    drop(gate.enter_gate(prompt)); // active
    let slow_permits = enter_all(&gate, slow);
    let slow_waiters: Vec<_> = (0..50).map(|_| gate.enter_gate(slow)).collect();
    assert!(
        slow_waiters
            .iter()
            .all(|entry| matches!(entry, GateEntry::Queued(..)))
    );
    assert_eq!(slow_permits.len(), 12);
    for _ in 0..100 {
        let entered: Vec<_> = (0..4).map(|_| gate.enter_gate(prompt)).collect();
        assert!(
            entered
                .iter()
                .all(|entry| matches!(entry, GateEntry::Admitted(_)))
        );
    }
    drop((slow_permits, slow_waiters));
    assert!(holds_nothing(&gate));
}

#[test]
fn a_source_that_waits_for_its_share_gets_all_places_when_no_other_calls() {
    let gate = AdmissionGate::new(4, 100);
    drop(gate.enter_gate(source_of(2)));
    let permits = enter_all(&gate, source());
    assert_eq!(permits.len(), 3);
    let GateEntry::Queued(mut waiter, _) = gate.enter_gate(source()) else {
        panic!()
    };
    gate.recheck_waiting();
    assert!(try_take_permit(&mut waiter).is_none(), "the other called");
    gate.locked.lock().unwrap().shares.forget_requests();
    gate.recheck_waiting();
    assert!(try_take_permit(&mut waiter).is_some());
    permits
        .into_iter()
        .for_each(|mut permit| drop(permit.gate.take()));
}

#[test]
fn a_place_is_claimed_only_for_those_who_could_use_it() {
    let gate = AdmissionGate::new(4, 100);
    let other = gate.try_enter(source_of(2)).unwrap();
    let permits = enter_all(&gate, source());
    assert_eq!(permits.len(), 3);
    let _waiter = gate.enter_gate(source());
    drop(gate.enter_gate(source_of(2))); // waits, and leaves again: still active
    drop(other);
    assert!(gate.has_free_place() && gate.has_waiting());
    assert!(
        !gate.claim_place(source_of(2)),
        "a free place is of no use to the one that waits"
    );
    assert!(gate.claim_place(source()));
}

#[test]
fn a_source_alone_takes_every_place() {
    let gate = AdmissionGate::new(16, 100);
    assert_eq!(enter_all(&gate, source()).len(), 16);
    assert_eq!(gate.load_counts(), (0, 0));
}

#[test]
fn a_withdrawn_place_leaves_the_share_of_its_source() {
    let gate = AdmissionGate::new(4, 100);
    drop(gate.enter_gate(source_of(2)));
    let withdrawn = enter_all(&gate, source());
    assert_eq!(withdrawn.len(), 3);
    gate.release_withdrawn(3);
    let permits = enter_all(&gate, source());
    assert_eq!(permits.len(), 3);
    withdrawn
        .into_iter()
        .for_each(|permit| drop(permit.disarm()));
    assert!(gate.try_enter(source()).is_none());
    drop(permits);
    assert!(holds_nothing(&gate));
}

/// Threads enter, wait, leave and give up while the limit changes. The limit holds, and no permit
/// is lost.
#[test]
fn the_limit_holds_over_many_threads() {
    const LIMIT: u32 = 8;
    let (gate, inside) = (AdmissionGate::new(LIMIT, 100), Arc::new(AtomicU32::new(0)));
    let run_thread = |n: u64| {
        let (gate, inside) = (gate.clone(), inside.clone());
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap();
            for i in 0..20_000u64 {
                let source = source_of((n % 3) as u8);
                let permit = match gate.enter_gate(source) {
                    GateEntry::Admitted(permit) => permit,
                    GateEntry::Queued(waiter, _) if (i + n).is_multiple_of(7) => {
                        drop(waiter);
                        continue;
                    }
                    GateEntry::Queued(waiter, _) => runtime.block_on(waiter).unwrap(),
                    GateEntry::Full | GateEntry::Closed => {
                        panic!("the queue has room for all")
                    }
                };
                assert!(
                    inside.fetch_add(1, Ordering::SeqCst) < LIMIT,
                    "above the limit"
                );
                std::hint::spin_loop();
                inside.fetch_sub(1, Ordering::SeqCst);
                drop(permit);
                if i % 1_000 == n {
                    gate.set_limits(1, 100);
                    gate.set_limits(LIMIT, 100);
                }
            }
        }
    };
    let threads: Vec<_> = (0..24).map(|n| std::thread::spawn(run_thread(n))).collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert!(holds_nothing(&gate));
}

/// Threads enter and leave while the function has a limit, and has none again.
#[test]
fn no_permit_is_lost_when_a_limit_comes_and_goes() {
    let gate = AdmissionGate::new(UNLIMITED, 1_000);
    let run_thread = |n: u8| {
        let gate = gate.clone();
        move || {
            for i in 0..20_000 {
                drop(gate.enter_gate(source_of(n)));
                if n == 0 && i % 100 == 0 {
                    gate.set_limits([UNLIMITED, 2][i / 100 % 2], 1_000);
                }
            }
        }
    };
    let threads: Vec<_> = (0..4).map(|n| std::thread::spawn(run_thread(n))).collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    gate.set_limits(UNLIMITED, 1_000);
    assert!(holds_nothing(&gate));
    let permit = gate.try_enter(source()).unwrap();
    assert_eq!(permit.place, None, "the fast path is open again");
}
