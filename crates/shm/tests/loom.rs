//! Every order in which two or three threads can meet on the shared words: `make loom`.
//!
//! Each promise has a control beside it that breaks one rule of the contract and must be caught.
#![cfg(loom)]
#![allow(clippy::unwrap_used)]
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex};
use loom::thread;
use nearpath_shm::bell::{self, Bell};
use nearpath_shm::descriptor::{Descriptor, Slot};
use nearpath_shm::leases::Leases;
use nearpath_shm::ring::{Consumer, Producer, Ring};
use nearpath_shm::shared::Shared;
use nearpath_shm::sync::{AtomicU32, Ordering, fence};
use nearpath_shm::word::{Party, Step, Word};

fn party(number: u16) -> Party {
    Party::new(number).unwrap()
}

fn descriptor(n: u32) -> Descriptor {
    Descriptor { slot: Slot(n), generation: n + 1, offset: n, length: n }
}

fn pop(consumer: &mut Consumer) -> Descriptor {
    loop {
        if let Some(descriptor) = consumer.pop().unwrap() {
            return descriptor;
        }
        thread::yield_now();
    }
}

#[test]
fn a_ring_keeps_order_and_content() {
    loom::model(|| {
        let ring = Ring::in_memory(2, u32::MAX); // wraps on the way
        let mut producer = Producer::new(ring.clone(), u32::MAX);
        let sender = thread::spawn(move || {
            for n in 0..3 {
                while producer.push(descriptor(n)).is_err() {
                    thread::yield_now();
                }
            }
        });
        let mut consumer = Consumer::new(ring, u32::MAX);
        for n in 0..3 {
            assert_eq!(pop(&mut consumer), descriptor(n));
            consumer.commit();
        }
        sender.join().unwrap();
    });
}

/// A slot's bytes, as far as loom can tell who touches them when.
struct Bytes(UnsafeCell<u32>);
// SAFETY: that only one thread touches it at a time is what these tests check.
unsafe impl Sync for Bytes {}
// SAFETY: as above.
unsafe impl Send for Bytes {}

impl Bytes {
    fn new() -> Arc<Self> {
        Arc::new(Self(UnsafeCell::new(0)))
    }

    fn touch(&self) {
        // SAFETY: loom ends the test when another thread is here at the same time, or was without synchronising.
        self.0.with_mut(|value| unsafe { *value += 1 });
    }
}

#[test]
fn a_slot_has_one_holder() {
    loom::model(|| {
        let (leases, bytes) = (Leases::in_memory(1), Bytes::new());
        let life = |number| {
            let (leases, bytes, by) = (leases.clone(), Arc::clone(&bytes), party(number));
            move || {
                if let Some((index, generation)) = leases.claim(by, 0) {
                    bytes.touch();
                    leases.step(index, Word::held(generation, by), Step::Release { by }).unwrap();
                }
            }
        };
        let other = thread::spawn(life(1));
        life(2)();
        other.join().unwrap();
        assert!(leases.word(0).unwrap().is_free());
        assert!(leases.claim(party(3), 0).is_some(), "its hint is not lost");
    });
}

#[test]
fn a_slot_that_is_handed_over_is_touched_by_one_after_the_other() {
    loom::model(|| {
        let (leases, bytes, ring) = (Leases::in_memory(1), Bytes::new(), Ring::in_memory(1, 0));
        let (p, q) = (party(1), party(2));
        let mut producer = Producer::new(ring.clone(), 0);
        let (leases2, bytes2) = (leases.clone(), Arc::clone(&bytes));
        let sender = thread::spawn(move || {
            let (index, generation) = leases2.claim(p, 0).unwrap();
            bytes2.touch();
            leases2.step(index, Word::held(generation, p), Step::Offer { by: p, to: q }).unwrap();
            producer.push(Descriptor { slot: Slot(index), generation, offset: 0, length: 64 }).unwrap();
        });
        let mut consumer = Consumer::new(ring, 0);
        let Descriptor { slot, generation, .. } = pop(&mut consumer);
        let offered = Word::offered(generation, p, q);
        let held = leases.step(slot.index(), offered, Step::Accept { from: p, by: q }).unwrap();
        bytes.touch();
        leases.step(slot.index(), held, Step::Release { by: q }).unwrap();
        sender.join().unwrap();
    });
}

/// P sent a slot and is dead; Q takes it while the node sweeps. `accept_first` is the contract's rule.
fn sweep_while_the_heir_accepts(accept_first: bool) {
    loom::model(move || {
        let (leases, ring) = (Leases::in_memory(1), Ring::in_memory(1, 0));
        let (p, q) = (party(1), party(2));
        let (index, generation) = leases.claim(p, 0).unwrap();
        let offered = leases.step(index, Word::held(generation, p), Step::Offer { by: p, to: q }).unwrap();
        let mut producer = Producer::new(ring.clone(), 0);
        producer.push(Descriptor { slot: Slot(index), generation, offset: 0, length: 64 }).unwrap();

        let (leases2, ring2) = (leases.clone(), ring.clone());
        let heir = thread::spawn(move || {
            let mut consumer = Consumer::new(ring2, 0);
            consumer.pop().unwrap().unwrap();
            if !accept_first {
                consumer.commit();
            }
            let accepted = leases2.step(index, offered, Step::Accept { from: p, by: q });
            consumer.commit();
            assert!(accepted.is_some(), "what is in a ring is not reclaimed from who reads it");
        });
        let word = leases.word(index).unwrap();
        if word == offered && !ring.holds(|d| d.slot == Slot(index) && d.generation == generation) {
            leases.step(index, word, Step::Reclaim);
        }
        heir.join().unwrap();
    });
}

#[test]
fn an_heir_gets_what_the_dead_sent() {
    sweep_while_the_heir_accepts(true);
}

#[test]
#[should_panic(expected = "what is in a ring is not reclaimed")]
fn control_committing_before_accepting_loses_it() {
    sweep_while_the_heir_accepts(false);
}

/// P sends to Q, who is dead, while the node closes and sweeps.
fn send_to_the_dead(fences: bool) {
    loom::model(move || {
        let (leases, ring) = (Leases::in_memory(1), Ring::in_memory(1, 0));
        let closed = Shared::own(vec![AtomicU32::new(0)]);
        let (p, q) = (party(1), party(2));
        let (index, generation) = leases.claim(p, 0).unwrap();

        let (leases2, closed2) = (leases.clone(), closed.clone());
        let sender = thread::spawn(move || {
            let mut producer = Producer::new(ring, 0);
            let held = Word::held(generation, p);
            let offered = leases2.step(index, held, Step::Offer { by: p, to: q }).unwrap();
            producer.push(Descriptor { slot: Slot(index), generation, offset: 0, length: 64 }).unwrap();
            if fences {
                fence(Ordering::SeqCst);
            }
            if closed2[0].load(Ordering::Acquire) != 0
                && let Some(held) = leases2.step(index, offered, Step::TakeBack { by: p, to: q })
            {
                leases2.step(index, held, Step::Release { by: p }).unwrap();
            }
        });
        closed[0].store(3, Ordering::Release);
        if fences {
            fence(Ordering::SeqCst);
        }
        let word = leases.word(index).unwrap();
        if word.holder() == Some(q) {
            leases.step(index, word, Step::Reclaim);
        }
        sender.join().unwrap();
        assert!(leases.word(index).unwrap().is_free(), "the slot is lost");
    });
}

#[test]
fn what_is_sent_to_the_dead_comes_back() {
    send_to_the_dead(true);
}

#[test]
#[should_panic(expected = "the slot is lost")]
fn control_without_fences_it_is_lost() {
    send_to_the_dead(false);
}

/// A futex, as far as the protocol needs it.
struct Futex(Mutex<()>, Condvar);

impl Bell for Futex {
    fn wait(&self, asleep: &AtomicU32, _: Option<Duration>) {
        let guard = self.0.lock().unwrap();
        if asleep.load(Ordering::Relaxed) == 1 {
            drop(self.1.wait(guard).unwrap());
        }
    }

    fn ring(&self, _: &AtomicU32) {
        drop(self.0.lock().unwrap());
        self.1.notify_one();
    }
}

/// An eventfd, as far as the protocol needs it.
struct Event(Mutex<u64>, Condvar);

impl Bell for Event {
    fn wait(&self, _: &AtomicU32, _: Option<Duration>) {
        let mut count = self.0.lock().unwrap();
        while *count == 0 {
            count = self.1.wait(count).unwrap();
        }
        *count = 0;
    }

    fn ring(&self, _: &AtomicU32) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_one();
    }
}

/// Two senders, each with a ring of its own, wake one sleeper. A lost wake-up is a deadlock, which loom reports.
fn wake(bell: impl Bell + Send + Sync + 'static, senders: usize, fences: bool) {
    let bell = Arc::new(bell);
    let asleep = Shared::own(vec![AtomicU32::new(0)]);
    let rings: Vec<Ring> = (0..senders).map(|_| Ring::in_memory(1, 0)).collect();
    let spawn = |ring: &Ring| {
        let (bell, asleep, mut producer) = (Arc::clone(&bell), asleep.clone(), Producer::new(ring.clone(), 0));
        thread::spawn(move || {
            producer.push(descriptor(1)).unwrap();
            if fences {
                fence(Ordering::SeqCst);
            }
            bell::knock(&asleep[0], &*bell);
        })
    };
    let threads: Vec<_> = rings.iter().map(spawn).collect();
    let mut consumers: Vec<Consumer> = rings.iter().map(|ring| Consumer::new(ring.clone(), 0)).collect();
    let mut got = 0;
    while got < senders {
        bell::sleep(&asleep[0], &*bell, None, || consumers.iter_mut().any(|consumer| !consumer.is_empty()));
        got += consumers.iter_mut().filter_map(|consumer| consumer.pop().unwrap()).count();
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn nobody_sleeps_through_a_futex() {
    loom::model(|| wake(Futex(Mutex::new(()), Condvar::new()), 1, true));
}

#[test]
fn nobody_sleeps_through_an_eventfd() {
    loom::model(|| wake(Event(Mutex::new(0), Condvar::new()), 1, true));
}

#[test]
fn two_senders_wake_one_sleeper() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| wake(Futex(Mutex::new(()), Condvar::new()), 2, true));
}

#[test]
#[should_panic(expected = "deadlock")]
fn control_without_a_fence_a_wake_up_is_lost() {
    loom::model(|| wake(Futex(Mutex::new(()), Condvar::new()), 1, false));
}

/// A producer without room sleeps until the consumer has made some, and fills it, again and again. It asks once it has said that it
/// sleeps, or while it is awake: then the consumer may answer for room that is full again.
fn starve(asks_asleep: bool) {
    let (ring, bell) = (Ring::in_memory(1, 0), Arc::new(Futex(Mutex::new(()), Condvar::new())));
    let asleep = Shared::own(vec![AtomicU32::new(0)]);
    let mut producer = Producer::new(ring.clone(), 0);
    producer.push(descriptor(0)).unwrap();
    let (bell2, asleep2) = (Arc::clone(&bell), asleep.clone());
    let eater = thread::spawn(move || {
        let mut consumer = Consumer::new(ring, 0);
        for n in 0..2 {
            assert_eq!(pop(&mut consumer), descriptor(n));
            consumer.commit();
            fence(Ordering::SeqCst);
            if consumer.feeds_starving() {
                bell::knock(&asleep2[0], &*bell2);
            }
        }
    });
    for n in 1..3 {
        while producer.room() == Ok(0) {
            if !asks_asleep && producer.starve().unwrap() {
                continue;
            }
            sleep(&asleep[0], &*bell, || match asks_asleep {
                true => producer.starve().unwrap(),
                false => producer.room() != Ok(0),
            });
        }
        producer.push(descriptor(n)).unwrap();
    }
    eater.join().unwrap();
}

/// As [`bell::sleep`], with exchanges in place of stores: loom does not order a store after another thread's exchange of what was
/// there before it, and would let that thread read its own 0 for ever.
fn sleep(asleep: &AtomicU32, bell: &impl Bell, ready: impl FnOnce() -> bool) {
    asleep.swap(1, Ordering::AcqRel);
    fence(Ordering::SeqCst);
    if !ready() {
        bell.wait(asleep, None);
    }
    asleep.swap(0, Ordering::AcqRel);
}

fn starving(asks_asleep: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || starve(asks_asleep));
}

#[test]
fn a_starving_producer_is_woken() {
    starving(true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn control_who_asks_while_awake_is_not_woken() {
    starving(false);
}
