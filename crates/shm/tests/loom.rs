//! Every order in which two or three threads can meet on the shared words: `make loom`.
//! A binary of its own: it is built with `--cfg loom`, where the other tests do not exist.
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
use nearpath_shm::descriptor::{Descriptor, SlotId};
use nearpath_shm::lease_table::LeaseTable;
use nearpath_shm::lease_word::{EndpointId, LeaseTransition, LeaseWord};
use nearpath_shm::ring::{Ring, RingConsumer, RingProducer};
use nearpath_shm::shared::SharedRef;
use nearpath_shm::sleep_wake::{self, WakeupPrimitive};
use nearpath_shm::sync::{AtomicU32, Ordering, fence};

fn endpoint_id(number: u16) -> EndpointId {
    EndpointId::new(number).unwrap()
}

fn numbered_descriptor(n: u32) -> Descriptor {
    Descriptor {
        slot: SlotId(n),
        generation: n + 1,
        offset: n,
        length: n,
    }
}

fn pop_spinning(consumer: &mut RingConsumer) -> Descriptor {
    loop {
        if let Some(descriptor) = consumer.pop_descriptor().unwrap() {
            return descriptor;
        }
        thread::yield_now();
    }
}

#[test]
fn a_ring_preserves_order_and_content() {
    loom::model(|| {
        let ring = Ring::in_memory(2, u32::MAX); // wraps on the way
        let mut producer = RingProducer::new(ring.clone(), u32::MAX);
        let sender = thread::spawn(move || {
            for n in 0..3 {
                while producer.push_descriptor(numbered_descriptor(n)).is_err() {
                    thread::yield_now();
                }
            }
        });
        let mut consumer = RingConsumer::new(ring, u32::MAX);
        for n in 0..3 {
            assert_eq!(pop_spinning(&mut consumer), numbered_descriptor(n));
            consumer.commit_head();
        }
        sender.join().unwrap();
    });
}

/// A slot's bytes, as far as loom can tell who touches them when.
struct SlotBytes(UnsafeCell<u32>);
// SAFETY: that only one thread touches it at a time is what these tests check.
unsafe impl Sync for SlotBytes {}
// SAFETY: as above.
unsafe impl Send for SlotBytes {}

impl SlotBytes {
    fn new() -> Arc<Self> {
        Arc::new(Self(UnsafeCell::new(0)))
    }

    fn write_exclusive(&self) {
        // SAFETY: loom ends the test when another thread is here at the same time, or was without
        // synchronising.
        self.0.with_mut(|value| unsafe { *value += 1 });
    }
}

#[test]
fn a_slot_has_one_holder() {
    loom::model(|| {
        let (leases, bytes) = (LeaseTable::in_memory(1), SlotBytes::new());
        let life = |number| {
            let (leases, bytes, by) = (leases.clone(), Arc::clone(&bytes), endpoint_id(number));
            move || {
                if let Some((index, generation)) = leases.claim_slot(by, 0) {
                    bytes.write_exclusive();
                    leases
                        .apply_transition(
                            index,
                            LeaseWord::held(generation, by),
                            LeaseTransition::Release { by },
                        )
                        .unwrap();
                }
            }
        };
        let other = thread::spawn(life(1));
        life(2)();
        other.join().unwrap();
        assert!(leases.lease_word(0).unwrap().is_free());
        assert!(
            leases.claim_slot(endpoint_id(3), 0).is_some(),
            "its hint is not lost"
        );
    });
}

#[test]
fn an_offered_slot_is_never_accessed_concurrently() {
    loom::model(|| {
        let (leases, bytes, ring) = (
            LeaseTable::in_memory(1),
            SlotBytes::new(),
            Ring::in_memory(1, 0),
        );
        let (p, q) = (endpoint_id(1), endpoint_id(2));
        let mut producer = RingProducer::new(ring.clone(), 0);
        let (leases2, bytes2) = (leases.clone(), Arc::clone(&bytes));
        let sender = thread::spawn(move || {
            let (index, generation) = leases2.claim_slot(p, 0).unwrap();
            bytes2.write_exclusive();
            leases2
                .apply_transition(
                    index,
                    LeaseWord::held(generation, p),
                    LeaseTransition::Offer { by: p, to: q },
                )
                .unwrap();
            producer
                .push_descriptor(Descriptor {
                    slot: SlotId(index),
                    generation,
                    offset: 0,
                    length: 64,
                })
                .unwrap();
        });
        let mut consumer = RingConsumer::new(ring, 0);
        let Descriptor {
            slot, generation, ..
        } = pop_spinning(&mut consumer);
        let offered = LeaseWord::offered(generation, p, q);
        let held = leases
            .apply_transition(
                slot.index(),
                offered,
                LeaseTransition::Accept { from: p, by: q },
            )
            .unwrap();
        bytes.write_exclusive();
        leases
            .apply_transition(slot.index(), held, LeaseTransition::Release { by: q })
            .unwrap();
        sender.join().unwrap();
    });
}

/// P sent a slot and is dead; Q takes it while the node sweeps. `accept_first` is the contract's
/// rule.
fn sweep_while_the_receiver_accepts(accept_first: bool) {
    loom::model(move || {
        let (leases, ring) = (LeaseTable::in_memory(1), Ring::in_memory(1, 0));
        let (p, q) = (endpoint_id(1), endpoint_id(2));
        let (index, generation) = leases.claim_slot(p, 0).unwrap();
        let offered = leases
            .apply_transition(
                index,
                LeaseWord::held(generation, p),
                LeaseTransition::Offer { by: p, to: q },
            )
            .unwrap();
        let mut producer = RingProducer::new(ring.clone(), 0);
        producer
            .push_descriptor(Descriptor {
                slot: SlotId(index),
                generation,
                offset: 0,
                length: 64,
            })
            .unwrap();

        let (leases2, ring2) = (leases.clone(), ring.clone());
        let receiver = thread::spawn(move || {
            let mut consumer = RingConsumer::new(ring2, 0);
            consumer.pop_descriptor().unwrap().unwrap();
            if !accept_first {
                consumer.commit_head();
            }
            let accepted = leases2.apply_transition(
                index,
                offered,
                LeaseTransition::Accept { from: p, by: q },
            );
            consumer.commit_head();
            assert!(
                accepted.is_some(),
                "a slot in a ring is not reclaimed from its reader"
            );
        });
        let word = leases.lease_word(index).unwrap();
        if word == offered
            && !ring.contains(|d| d.slot == SlotId(index) && d.generation == generation)
        {
            leases.apply_transition(index, word, LeaseTransition::Reclaim);
        }
        receiver.join().unwrap();
    });
}

#[test]
fn a_receiver_gets_messages_of_a_dead_sender() {
    sweep_while_the_receiver_accepts(true);
}

#[test]
#[should_panic(expected = "a slot in a ring is not reclaimed")]
fn control_committing_before_accepting_loses_the_slot() {
    sweep_while_the_receiver_accepts(false);
}

/// P sends to Q, who is dead, while the node closes and sweeps.
fn send_to_dead_endpoint(fences: bool) {
    loom::model(move || {
        let (leases, ring) = (LeaseTable::in_memory(1), Ring::in_memory(1, 0));
        let closed = SharedRef::from_vec(vec![AtomicU32::new(0)]);
        let (p, q) = (endpoint_id(1), endpoint_id(2));
        let (index, generation) = leases.claim_slot(p, 0).unwrap();

        let (leases2, closed2) = (leases.clone(), closed.clone());
        let sender = thread::spawn(move || {
            let mut producer = RingProducer::new(ring, 0);
            let held = LeaseWord::held(generation, p);
            let offered = leases2
                .apply_transition(index, held, LeaseTransition::Offer { by: p, to: q })
                .unwrap();
            producer
                .push_descriptor(Descriptor {
                    slot: SlotId(index),
                    generation,
                    offset: 0,
                    length: 64,
                })
                .unwrap();
            if fences {
                fence(Ordering::SeqCst);
            }
            if closed2[0].load(Ordering::Acquire) != 0
                && let Some(held) = leases2.apply_transition(
                    index,
                    offered,
                    LeaseTransition::TakeBack { by: p, to: q },
                )
            {
                leases2
                    .apply_transition(index, held, LeaseTransition::Release { by: p })
                    .unwrap();
            }
        });
        closed[0].store(3, Ordering::Release);
        if fences {
            fence(Ordering::SeqCst);
        }
        let word = leases.lease_word(index).unwrap();
        if word.held_by() == Some(q) {
            leases.apply_transition(index, word, LeaseTransition::Reclaim);
        }
        sender.join().unwrap();
        assert!(
            leases.lease_word(index).unwrap().is_free(),
            "the slot is lost"
        );
    });
}

#[test]
fn slots_sent_to_a_dead_endpoint_are_freed() {
    send_to_dead_endpoint(true);
}

#[test]
#[should_panic(expected = "the slot is lost")]
fn control_without_fences_the_slot_is_lost() {
    send_to_dead_endpoint(false);
}

/// A futex, as far as the protocol needs it.
struct ModelFutex(Mutex<()>, Condvar);

impl WakeupPrimitive for ModelFutex {
    fn wait_asleep(&self, asleep: &AtomicU32, _: Option<Duration>) {
        let guard = self.0.lock().unwrap();
        if asleep.load(Ordering::Relaxed) == 1 {
            drop(self.1.wait(guard).unwrap());
        }
    }

    fn wake_one(&self, _: &AtomicU32) {
        drop(self.0.lock().unwrap());
        self.1.notify_one();
    }
}

/// An eventfd, as far as the protocol needs it.
struct ModelEventfd(Mutex<u64>, Condvar);

impl WakeupPrimitive for ModelEventfd {
    fn wait_asleep(&self, _: &AtomicU32, _: Option<Duration>) {
        let mut count = self.0.lock().unwrap();
        while *count == 0 {
            count = self.1.wait(count).unwrap();
        }
        *count = 0;
    }

    fn wake_one(&self, _: &AtomicU32) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_one();
    }
}

/// Two senders, each with a ring of its own, wake one sleeper. A lost wake-up is a deadlock, which
/// loom reports.
fn wake_sleeper(bell: impl WakeupPrimitive + Send + Sync + 'static, senders: usize, fences: bool) {
    let bell = Arc::new(bell);
    let asleep = SharedRef::from_vec(vec![AtomicU32::new(0)]);
    let rings: Vec<Ring> = (0..senders).map(|_| Ring::in_memory(1, 0)).collect();
    let spawn = |ring: &Ring| {
        let (bell, asleep, mut producer) = (
            Arc::clone(&bell),
            asleep.clone(),
            RingProducer::new(ring.clone(), 0),
        );
        thread::spawn(move || {
            producer.push_descriptor(numbered_descriptor(1)).unwrap();
            if fences {
                fence(Ordering::SeqCst);
            }
            sleep_wake::wake_if_asleep(&asleep[0], &*bell);
        })
    };
    let threads: Vec<_> = rings.iter().map(spawn).collect();
    let mut consumers: Vec<RingConsumer> = rings
        .iter()
        .map(|ring| RingConsumer::new(ring.clone(), 0))
        .collect();
    let mut got = 0;
    while got < senders {
        sleep_wake::sleep_unless_ready(&asleep[0], &*bell, None, || {
            consumers.iter_mut().any(|consumer| !consumer.is_empty())
        });
        got += consumers
            .iter_mut()
            .filter_map(|consumer| consumer.pop_descriptor().unwrap())
            .count();
    }
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

#[test]
fn no_futex_wakeup_is_lost() {
    loom::model(|| wake_sleeper(ModelFutex(Mutex::new(()), Condvar::new()), 1, true));
}

#[test]
fn no_eventfd_wakeup_is_lost() {
    loom::model(|| wake_sleeper(ModelEventfd(Mutex::new(0), Condvar::new()), 1, true));
}

#[test]
fn two_senders_wake_one_sleeper() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| wake_sleeper(ModelFutex(Mutex::new(()), Condvar::new()), 2, true));
}

#[test]
#[should_panic(expected = "deadlock")]
fn control_without_a_fence_a_wakeup_is_lost() {
    loom::model(|| wake_sleeper(ModelFutex(Mutex::new(()), Condvar::new()), 1, false));
}

/// A producer without room sleeps until the consumer has made some, and fills it, again and again.
/// It asks once it has said that it sleeps, or while it is awake: then the consumer may answer for
/// room that is full again.
fn refill_full_ring(asks_asleep: bool) {
    let (ring, bell) = (
        Ring::in_memory(1, 0),
        Arc::new(ModelFutex(Mutex::new(()), Condvar::new())),
    );
    let asleep = SharedRef::from_vec(vec![AtomicU32::new(0)]);
    let mut producer = RingProducer::new(ring.clone(), 0);
    producer.push_descriptor(numbered_descriptor(0)).unwrap();
    let (bell2, asleep2) = (Arc::clone(&bell), asleep.clone());
    let eater = thread::spawn(move || {
        let mut consumer = RingConsumer::new(ring, 0);
        for n in 0..2 {
            assert_eq!(pop_spinning(&mut consumer), numbered_descriptor(n));
            consumer.commit_head();
            fence(Ordering::SeqCst);
            if consumer.take_wakeup_request() {
                sleep_wake::wake_if_asleep(&asleep2[0], &*bell2);
            }
        }
    });
    for n in 1..3 {
        while producer.free_entries() == Ok(0) {
            if !asks_asleep && producer.request_wakeup().unwrap() {
                continue;
            }
            sleep_with_exchanges(&asleep[0], &*bell, || match asks_asleep {
                true => producer.request_wakeup().unwrap(),
                false => producer.free_entries() != Ok(0),
            });
        }
        producer.push_descriptor(numbered_descriptor(n)).unwrap();
    }
    eater.join().unwrap();
}

/// As [`sleep_wake::sleep_unless_ready`], with exchanges in place of stores: loom does not order a
/// store after another thread's exchange of what was there before it, and would let that thread
/// read its own 0 for ever.
fn sleep_with_exchanges(
    asleep: &AtomicU32,
    bell: &impl WakeupPrimitive,
    ready: impl FnOnce() -> bool,
) {
    asleep.swap(1, Ordering::AcqRel);
    fence(Ordering::SeqCst);
    if !ready() {
        bell.wait_asleep(asleep, None);
    }
    asleep.swap(0, Ordering::AcqRel);
}

fn check_refill(asks_asleep: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || refill_full_ring(asks_asleep));
}

#[test]
fn a_producer_waiting_for_room_is_woken() {
    check_refill(true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn control_a_request_made_while_awake_loses_the_wakeup() {
    check_refill(false);
}
