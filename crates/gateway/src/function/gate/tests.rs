//! The gate held against a model, and against threads.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU32;
use std::task::Waker;

#[derive(Debug, Clone)]
enum Step {
    Enter,
    Leave(usize),
    Abandon(usize),
    Return(usize),
    Forgive(usize),
    Resize(u32, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => Just(Step::Enter),
        3 => (0usize..50).prop_map(Step::Leave),
        1 => (0usize..50).prop_map(Step::Abandon),
        1 => (0usize..50).prop_map(Step::Return),
        1 => (0usize..50).prop_map(Step::Forgive),
        1 => (0u32..6, 0u32..6).prop_map(|(capacity, bound)| Step::Resize(capacity, bound)),
    ];
    proptest::collection::vec(step, 0..200)
}

struct World {
    gate: Arc<Gate>,
    capacity: u32,
    bound: u32,
    held: Vec<Permit>,
    waiting: VecDeque<Waiter>,
}

impl World {
    fn take(&mut self, step: Step) {
        match step {
            Step::Enter => self.enter(),
            Step::Leave(i) => drop(nth(&mut self.held, i)),
            Step::Forgive(i) => {
                if let Some(permit) = nth(&mut self.held, i) {
                    self.gate.forgive(1);
                    drop(permit.forget());
                }
            }
            Step::Return(i) => {
                if let Some(permit) = nth(&mut self.held, i) {
                    self.waiting.push_front(Gate::step_back(permit).unwrap());
                }
            }
            Step::Abandon(i) if !self.waiting.is_empty() => drop(self.waiting.remove(i % self.waiting.len())),
            Step::Abandon(_) => {}
            Step::Resize(capacity, bound) => {
                (self.capacity, self.bound) = (capacity, bound);
                self.gate.resize(capacity, bound);
            }
        }
    }

    fn enter(&mut self) {
        match self.gate.enter() {
            Entry::In(permit) => {
                assert!(self.waiting.is_empty(), "passed those who wait");
                self.held.push(permit);
                assert!(self.held.len() <= self.capacity as usize, "above the limit");
            }
            Entry::Wait(waiter, first) => {
                assert_eq!(first, self.waiting.is_empty());
                assert!(self.waiting.len() < self.bound as usize, "above the bound");
                self.waiting.push_back(waiter);
            }
            Entry::Full => assert!(self.waiting.len() >= self.bound as usize),
            Entry::Closed => panic!("nobody closed it"),
        }
    }

    /// Those who were let in are the first ones; nobody waits while there is room; nothing is lost.
    fn settle(&mut self) {
        let before = self.held.len();
        let mut called = self.waiting.iter_mut().map(is_called).collect::<Vec<_>>();
        let n = called.iter().take_while(|permit| permit.is_some()).count();
        assert!(called[n..].iter().all(Option::is_none), "not in the order in which they came");
        self.held.extend(called.drain(..n).flatten());
        self.waiting.drain(..n);
        assert!(n == 0 || self.held.len() <= before.max(self.capacity as usize), "above the limit");
        assert!(self.waiting.is_empty() || self.held.len() >= self.capacity as usize, "stranded");
        assert_eq!(self.gate.load(), (self.held.len() as u32, self.waiting.len()), "a permit was lost or made");
    }
}

fn nth(permits: &mut Vec<Permit>, i: usize) -> Option<Permit> {
    (!permits.is_empty()).then(|| permits.swap_remove(i % permits.len()))
}

fn is_called(waiter: &mut Waiter) -> Option<Permit> {
    match Pin::new(waiter).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(permit)) => Some(permit),
        _ => None,
    }
}

proptest! {
    #[test]
    fn the_limit_holds_and_nobody_is_forgotten(steps in steps()) {
        let (capacity, bound) = (2, 3);
        let gate = Gate::new(capacity, bound);
        let mut world = World { gate, capacity, bound, held: Vec::new(), waiting: VecDeque::new() };
        for step in steps {
            world.take(step);
            world.settle();
        }
    }
}

#[test]
fn one_who_is_called_and_gone_calls_the_next() {
    let gate = Gate::new(1, 2);
    let Entry::In(first) = gate.enter() else { panic!() };
    let Entry::Wait(second, true) = gate.enter() else { panic!() };
    let Entry::Wait(mut third, false) = gate.enter() else { panic!() };
    drop(first); // the permit is on its way to the second
    drop(second);
    assert!(is_called(&mut third).is_some());
}

#[test]
fn a_closed_gate_lets_everybody_know() {
    let gate = Gate::new(0, 2);
    let Entry::Wait(mut waiter, _) = gate.enter() else { panic!() };
    gate.close();
    assert!(matches!(Pin::new(&mut waiter).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err(Closed))));
    assert!(matches!(gate.enter(), Entry::Closed));
}

/// Threads come, wait, leave and walk away while the limit moves: never above it, and nothing is left behind.
#[test]
fn many_threads() {
    const LIMIT: u32 = 3;
    let (gate, inside) = (Gate::new(LIMIT, 100), Arc::new(AtomicU32::new(0)));
    let visit = |n: u64| {
        let (gate, inside) = (gate.clone(), inside.clone());
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            for i in 0..20_000u64 {
                let permit = match gate.enter() {
                    Entry::In(permit) => permit,
                    Entry::Wait(waiter, _) if (i + n).is_multiple_of(7) => {
                        drop(waiter);
                        continue;
                    }
                    Entry::Wait(waiter, _) => runtime.block_on(waiter).unwrap(),
                    Entry::Full | Entry::Closed => panic!("there is room for everybody to wait"),
                };
                assert!(inside.fetch_add(1, Ordering::SeqCst) < LIMIT, "above the limit");
                std::hint::spin_loop();
                inside.fetch_sub(1, Ordering::SeqCst);
                drop(permit);
                if i % 1_000 == n {
                    gate.resize(1, 100);
                    gate.resize(LIMIT, 100);
                }
            }
        }
    };
    let threads: Vec<_> = (0..8).map(|n| std::thread::spawn(visit(n))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(gate.load(), (0, 0));
    assert!(matches!(gate.enter(), Entry::In(_)), "the fast way is open again");
}
