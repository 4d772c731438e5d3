//! A pool against a model: whatever parties do, in whatever order, and wherever they die, a slot has at most one holder, and
//! after the node's sweep nothing is lost.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::Arc;

use nearpath_shm::geometry::Size;
use nearpath_shm::lease::Offer;
use nearpath_shm::member::NotClaimed;
use nearpath_shm::reclaim::{self, Usage};
use nearpath_shm::region::{Access, Pages, Region};
use nearpath_shm::{Descriptor, Lease, Member, Party, Pool, Slot};
use proptest::prelude::*;

const PARTIES: u16 = 4;
const SIZES: [Size; 2] = [Size { size: 64, count: 3 }, Size { size: 256, count: 2 }];

#[derive(Debug, Clone)]
enum Act {
    Claim {
        by: u16,
        bytes: u32,
    },
    /// Half a send: the party can die between offering and pushing.
    Offer {
        by: u16,
        to: u16,
        which: prop::sample::Index,
    },
    Push {
        by: u16,
    },
    TakeBack {
        by: u16,
    },
    Accept {
        from: u16,
        by: u16,
    },
    Release {
        by: u16,
        which: prop::sample::Index,
    },
    Die {
        who: u16,
    },
    Sweep,
}

fn act() -> impl Strategy<Value = Act> {
    let party = || 1..=PARTIES;
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => (party(), 1u32..=256).prop_map(|(by, bytes)| Act::Claim { by, bytes }),
        3 => (party(), party(), index()).prop_map(|(by, to, which)| Act::Offer { by, to, which }),
        3 => party().prop_map(|by| Act::Push { by }),
        1 => party().prop_map(|by| Act::TakeBack { by }),
        3 => (party(), party()).prop_map(|(from, by)| Act::Accept { from, by }),
        2 => (party(), index()).prop_map(|(by, which)| Act::Release { by, which }),
        1 => party().prop_map(|who| Act::Die { who }),
        1 => Just(Act::Sweep),
    ]
}

/// One process, as far as leases go. When it dies, its values are forgotten, not dropped.
struct Process {
    member: Arc<Member>,
    held: Vec<Lease>,
    offered: Option<(Offer, u16)>,
}

struct World {
    pool: Arc<Pool>,
    living: BTreeMap<u16, Process>,
    /// Rings by (from, to): what was pushed and not popped.
    rings: BTreeMap<(u16, u16), Vec<Descriptor>>,
    next: u16,
}

fn party(number: u16) -> Party {
    Party::new(number).unwrap()
}

impl World {
    fn new() -> Self {
        let pool = Arc::new(Pool::create(&SIZES, Pages::Small).unwrap());
        let mut world = Self { pool, living: BTreeMap::new(), rings: BTreeMap::new(), next: 0 };
        (0..PARTIES).for_each(|_| world.spawn());
        world
    }

    /// A new process gets a number that was never given before.
    fn spawn(&mut self) {
        self.next += 1;
        let member = Member::new(Arc::clone(&self.pool), party(self.next), u64::MAX);
        self.living.insert(self.next, Process { member, held: Vec::new(), offered: None });
    }

    /// The n-th living party.
    fn number(&self, n: u16) -> u16 {
        *self.living.keys().nth(usize::from(n - 1)).unwrap()
    }

    fn process(&mut self, n: u16) -> &mut Process {
        let number = self.number(n);
        self.living.get_mut(&number).unwrap()
    }

    fn step(&mut self, act: Act) {
        match act {
            Act::Claim { by, bytes } => {
                let process = self.process(by);
                match process.member.claim(bytes) {
                    Ok(lease) => process.held.push(lease),
                    Err(fault) => {
                        assert_eq!(fault, NotClaimed::Exhausted);
                        assert!(!self.has_free(bytes), "a free slot was not found");
                    }
                }
            }
            Act::Offer { by, to, which } => {
                let to = self.number(to);
                let process = self.process(by);
                if process.offered.is_none() && !process.held.is_empty() {
                    let lease = process.held.swap_remove(which.index(process.held.len()));
                    process.offered = Some((lease.offer(party(to)).expect("who holds may offer"), to));
                }
            }
            Act::Push { by } => {
                let from = self.number(by);
                if let Some((offer, to)) = self.process(by).offered.take() {
                    self.rings.entry((from, to)).or_default().push(offer.descriptor(0, 64));
                    offer.sent();
                }
            }
            Act::TakeBack { by } => {
                let living: BTreeSet<u16> = self.living.keys().copied().collect();
                let process = self.process(by);
                if let Some((offer, to)) = process.offered.take() {
                    match offer.take_back() {
                        Ok(lease) => process.held.push(lease),
                        Err(_) => assert!(!living.contains(&to), "only the node takes it meanwhile"),
                    }
                }
            }
            Act::Accept { from, by } => self.accept(from, by),
            Act::Release { by, which } => {
                let process = self.process(by);
                if !process.held.is_empty() {
                    drop(process.held.swap_remove(which.index(process.held.len())));
                }
            }
            Act::Die { who } => {
                let number = self.number(who);
                let dead = self.living.remove(&number).unwrap();
                dead.held.into_iter().for_each(std::mem::forget);
                dead.offered.into_iter().for_each(|(offer, _)| std::mem::forget(offer));
                self.spawn();
            }
            Act::Sweep => self.sweep(),
        }
    }

    /// Reads a ring of the living or, first, of somebody who died.
    fn accept(&mut self, from: u16, by: u16) {
        let by = self.number(by);
        let from = match self.rings.keys().find(|(from, to)| *to == by && !self.living.contains_key(from)) {
            Some((dead, _)) => *dead,
            None => self.number(from),
        };
        let Some(ring) = self.rings.get_mut(&(from, by)).filter(|ring| !ring.is_empty()) else { return };
        let descriptor = ring.remove(0);
        for (&number, process) in &self.living {
            if number != by {
                assert!(process.member.accept(&descriptor, party(from)).is_err(), "stolen by {number}");
            }
        }
        let process = self.living.get_mut(&by).unwrap();
        process.held.push(process.member.accept(&descriptor, party(from)).expect("what was sent is still there"));
        assert!(process.member.accept(&descriptor, party(from)).is_err(), "accepted twice");
    }

    fn sweep(&mut self) {
        let (living, rings) = (&self.living, &self.rings);
        let in_ring = |from: Party, to: Party, slot: Slot, generation: u32| {
            let ring = rings.get(&(from.get(), to.get()));
            ring.is_some_and(|ring| ring.iter().any(|d| d.slot == slot && d.generation == generation))
        };
        let swept = reclaim::sweep(&self.pool, |party| living.contains_key(&party.get()), in_ring);
        self.rings.retain(|(_, to), _| living.contains_key(to));
        let left = self.rings.iter().filter(|((from, _), _)| !living.contains_key(from)).map(|(_, ring)| ring.len());
        let underway: usize = left.sum();
        assert_eq!(swept.underway as usize, underway, "what the dead sent to the living stays");
        let usage = reclaim::usage(&self.pool);
        let of_the_dead = usage.iter().filter(|(party, _)| !living.contains_key(&party.get()));
        assert_eq!(of_the_dead.map(|(_, usage)| usage.slots as usize).sum::<usize>(), underway, "and nothing else");
    }

    fn has_free(&self, bytes: u32) -> bool {
        let free = |(_, leases): (u32, &nearpath_shm::leases::Leases)| {
            (0..leases.count()).any(|index| leases.word(index).unwrap().is_free())
        };
        self.pool.classes().filter(|(size, _)| *size >= bytes).any(free)
    }

    /// Nobody believes to hold what the word does not say is theirs, and no slot has two holders.
    fn check(&self) {
        let mut seen = BTreeSet::new();
        for (&number, process) in &self.living {
            for lease in &process.held {
                assert!(seen.insert(lease.slot()), "{:?} has two holders", lease.slot());
                let word = self.pool.class(lease.slot().class()).unwrap().word(lease.slot().index()).unwrap();
                assert_eq!((word.holder(), word.from()), (Some(party(number)), None));
                assert_eq!(word.generation(), lease.generation());
            }
            let bytes: u64 = process.held.iter().map(|lease| u64::from(lease.size())).sum();
            let offered = process.offered.as_ref().map_or(0, |(offer, _)| {
                u64::from(self.pool.geometry().slot_size(offer.descriptor(0, 64).slot).unwrap())
            });
            assert_eq!(process.member.held(), bytes + offered, "the private account");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn one_holder_at_most_and_nothing_lost(acts in proptest::collection::vec(act(), 0..80)) {
        let mut world = World::new();
        for act in acts {
            world.step(act);
            world.check();
        }
        world.sweep();
        for process in world.living.values_mut() {
            process.held.clear();
            process.offered = None;
        }
        world.rings.clear();
        world.living.clear();
        world.sweep();
        prop_assert_eq!(reclaim::usage(&world.pool), BTreeMap::<Party, Usage>::new());
        let member = Member::new(Arc::clone(&world.pool), party(u16::MAX), u64::MAX);
        let all: Vec<Lease> = std::iter::from_fn(|| member.claim(64).ok()).collect();
        prop_assert_eq!(all.len(), 5, "every slot is found again");
    }
}

/// Who dies between clearing a hint and changing the word, or the other way round, leaves a free slot that nobody looks for.
#[test]
fn lost_hints_come_back() {
    let pool = Arc::new(Pool::create(&SIZES, Pages::Small).unwrap());
    let raw = Region::open(pool.as_fd().try_clone_to_owned().unwrap(), pool.bytes(), Access::Write).unwrap();
    raw.write(pool.geometry().classes()[0].hints, &[0; 8]);
    let member = Member::new(Arc::clone(&pool), party(1), u64::MAX);
    assert_eq!(member.claim(64).unwrap().size(), 256, "only the larger class has hints left");
    assert_eq!(reclaim::sweep(&pool, |_| true, |_, _, _, _| false).hints, 3);
    assert_eq!(member.claim(64).unwrap().size(), 64);
}

#[test]
fn a_bound_holds() {
    let pool = Arc::new(Pool::create(&SIZES, Pages::Small).unwrap());
    let member = Member::new(pool, party(1), 128);
    let first = member.claim(64).unwrap();
    let _second = member.claim(1).unwrap();
    assert_eq!(member.claim(64).unwrap_err(), NotClaimed::Bound);
    drop(first);
    assert!(member.claim(64).is_ok());
    assert_eq!(member.claim(257).unwrap_err(), NotClaimed::TooLarge);
}
