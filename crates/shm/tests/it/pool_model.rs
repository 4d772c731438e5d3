//! A pool against a model, with endpoints that act in any order and die anywhere. A slot has at
//! most one holder. After the node's sweep nothing is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::Arc;

use nearpath_shm::endpoint::ClaimError;
use nearpath_shm::geometry::ClassSpec;
use nearpath_shm::lease::LeaseOffer;
use nearpath_shm::reclaim::{self, SlotUsage};
use nearpath_shm::region::{MapAccess, PageKind, Region};
use nearpath_shm::{Descriptor, EndpointId, Lease, PoolEndpoint, SlotId, SlotPool};
use proptest::prelude::*;

const ENDPOINTS: u16 = 4;
const CLASS_SPECS: [ClassSpec; 2] = [
    ClassSpec { size: 64, count: 3 },
    ClassSpec {
        size: 256,
        count: 2,
    },
];

#[derive(Debug, Clone)]
enum PoolAction {
    Claim {
        by: u16,
        bytes: u32,
    },
    /// Half a send: the endpoint can die between offering and pushing.
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
        endpoint: u16,
    },
    Sweep,
}

fn any_action() -> impl Strategy<Value = PoolAction> {
    let endpoint = || 1..=ENDPOINTS;
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => (endpoint(), 1u32..=256).prop_map(|(by, bytes)| PoolAction::Claim { by, bytes }),
        3 => (endpoint(), endpoint(), index()).prop_map(|(by, to, which)| PoolAction::Offer { by, to, which }),
        3 => endpoint().prop_map(|by| PoolAction::Push { by }),
        1 => endpoint().prop_map(|by| PoolAction::TakeBack { by }),
        3 => (endpoint(), endpoint()).prop_map(|(from, by)| PoolAction::Accept { from, by }),
        2 => (endpoint(), index()).prop_map(|(by, which)| PoolAction::Release { by, which }),
        1 => endpoint().prop_map(|who| PoolAction::Die { endpoint: who }),
        1 => Just(PoolAction::Sweep),
    ]
}

/// A process, as far as leases go.
struct EndpointProcess {
    endpoint: Arc<PoolEndpoint>,
    held: Vec<Lease>,
    offered: Option<(LeaseOffer, u16)>,
}

struct PoolModel {
    pool: Arc<SlotPool>,
    alive: BTreeMap<u16, EndpointProcess>,
    /// Rings by (from, to): what was pushed and not popped.
    rings: BTreeMap<(u16, u16), Vec<Descriptor>>,
    last_id: u16,
}

fn endpoint_id(number: u16) -> EndpointId {
    EndpointId::new(number).unwrap()
}

impl PoolModel {
    fn new() -> Self {
        let pool = Arc::new(SlotPool::create(&CLASS_SPECS, PageKind::Small).unwrap());
        let mut world = Self {
            pool,
            alive: BTreeMap::new(),
            rings: BTreeMap::new(),
            last_id: 0,
        };
        (0..ENDPOINTS).for_each(|_| world.spawn_process());
        world
    }

    /// A new process gets a number that was never given before.
    fn spawn_process(&mut self) {
        self.last_id += 1;
        let member = PoolEndpoint::new(Arc::clone(&self.pool), endpoint_id(self.last_id), u64::MAX);
        self.alive.insert(
            self.last_id,
            EndpointProcess {
                endpoint: member,
                held: Vec::new(),
                offered: None,
            },
        );
    }

    /// The n-th living endpoint.
    fn alive_id(&self, n: u16) -> u16 {
        *self.alive.keys().nth(usize::from(n - 1)).unwrap()
    }

    fn process_mut(&mut self, n: u16) -> &mut EndpointProcess {
        let number = self.alive_id(n);
        self.alive.get_mut(&number).unwrap()
    }

    fn apply_action(&mut self, act: PoolAction) {
        match act {
            PoolAction::Claim { by, bytes } => {
                let process = self.process_mut(by);
                match process.endpoint.claim_slot(bytes) {
                    Ok(lease) => process.held.push(lease),
                    Err(fault) => {
                        assert_eq!(fault, ClaimError::Exhausted);
                        assert!(!self.has_free_slot(bytes), "a free slot was not found");
                    }
                }
            }
            PoolAction::Offer { by, to, which } => {
                let to = self.alive_id(to);
                let process = self.process_mut(by);
                if process.offered.is_none() && !process.held.is_empty() {
                    let lease = process.held.swap_remove(which.index(process.held.len()));
                    process.offered = Some((
                        lease
                            .offer_to(endpoint_id(to))
                            .expect("who holds may offer"),
                        to,
                    ));
                }
            }
            PoolAction::Push { by } => {
                let from = self.alive_id(by);
                if let Some((offer, to)) = self.process_mut(by).offered.take() {
                    self.rings
                        .entry((from, to))
                        .or_default()
                        .push(offer.descriptor(0, 64));
                    offer.confirm_pushed();
                }
            }
            PoolAction::TakeBack { by } => {
                let living: BTreeSet<u16> = self.alive.keys().copied().collect();
                let process = self.process_mut(by);
                if let Some((offer, to)) = process.offered.take() {
                    match offer.take_back() {
                        Ok(lease) => process.held.push(lease),
                        Err(_) => {
                            assert!(!living.contains(&to), "only the node takes it meanwhile")
                        }
                    }
                }
            }
            PoolAction::Accept { from, by } => self.accept_next(from, by),
            PoolAction::Release { by, which } => {
                let process = self.process_mut(by);
                if !process.held.is_empty() {
                    drop(process.held.swap_remove(which.index(process.held.len())));
                }
            }
            PoolAction::Die { endpoint: who } => {
                let number = self.alive_id(who);
                let dead = self.alive.remove(&number).unwrap();
                dead.held.into_iter().for_each(std::mem::forget);
                dead.offered
                    .into_iter()
                    .for_each(|(offer, _)| std::mem::forget(offer));
                self.spawn_process();
            }
            PoolAction::Sweep => self.sweep_and_check(),
        }
    }

    /// Reads a ring of the living or, first, of somebody who died.
    fn accept_next(&mut self, from: u16, by: u16) {
        let by = self.alive_id(by);
        let from = match self
            .rings
            .keys()
            .find(|(from, to)| *to == by && !self.alive.contains_key(from))
        {
            Some((dead, _)) => *dead,
            None => self.alive_id(from),
        };
        let Some(ring) = self
            .rings
            .get_mut(&(from, by))
            .filter(|ring| !ring.is_empty())
        else {
            return;
        };
        let descriptor = ring.remove(0);
        for (&number, process) in &self.alive {
            if number != by {
                assert!(
                    process
                        .endpoint
                        .accept_offer(&descriptor, endpoint_id(from))
                        .is_err(),
                    "stolen by {number}"
                );
            }
        }
        let process = self.alive.get_mut(&by).unwrap();
        process.held.push(
            process
                .endpoint
                .accept_offer(&descriptor, endpoint_id(from))
                .expect("what was sent is still there"),
        );
        assert!(
            process
                .endpoint
                .accept_offer(&descriptor, endpoint_id(from))
                .is_err(),
            "accepted twice"
        );
    }

    fn sweep_and_check(&mut self) {
        let (living, rings) = (&self.alive, &self.rings);
        let in_ring = |from: EndpointId, to: EndpointId, slot: SlotId, generation: u32| {
            let ring = rings.get(&(from.get(), to.get()));
            ring.is_some_and(|ring| {
                ring.iter()
                    .any(|d| d.slot == slot && d.generation == generation)
            })
        };
        let swept = reclaim::sweep_pool(
            &self.pool,
            |endpoint| living.contains_key(&endpoint.get()),
            in_ring,
        );
        self.rings.retain(|(_, to), _| living.contains_key(to));
        let left = self
            .rings
            .iter()
            .filter(|((from, _), _)| !living.contains_key(from))
            .map(|(_, ring)| ring.len());
        let underway: usize = left.sum();
        assert_eq!(
            swept.in_flight as usize, underway,
            "what the dead sent to the living stays"
        );
        let usage = reclaim::slot_usage(&self.pool);
        let of_the_dead = usage
            .iter()
            .filter(|(endpoint, _)| !living.contains_key(&endpoint.get()));
        assert_eq!(
            of_the_dead
                .map(|(_, usage)| usage.slots as usize)
                .sum::<usize>(),
            underway,
            "and nothing else"
        );
    }

    fn has_free_slot(&self, bytes: u32) -> bool {
        let free = |(_, leases): (u32, &nearpath_shm::lease_table::LeaseTable)| {
            (0..leases.slot_count()).any(|index| leases.lease_word(index).unwrap().is_free())
        };
        self.pool
            .lease_tables()
            .filter(|(size, _)| *size >= bytes)
            .any(free)
    }

    /// No endpoint believes to hold a slot whose word names another, and no slot has two holders.
    fn check_holders(&self) {
        let mut seen = BTreeSet::new();
        for (&number, process) in &self.alive {
            for lease in &process.held {
                assert!(
                    seen.insert(lease.slot()),
                    "{:?} has two holders",
                    lease.slot()
                );
                let word = self
                    .pool
                    .lease_table(lease.slot().class())
                    .unwrap()
                    .lease_word(lease.slot().index())
                    .unwrap();
                assert_eq!(
                    (word.held_by(), word.offered_by()),
                    (Some(endpoint_id(number)), None)
                );
                assert_eq!(word.generation(), lease.generation());
            }
            let bytes: u64 = process
                .held
                .iter()
                .map(|lease| u64::from(lease.slot_size()))
                .sum();
            let offered = process.offered.as_ref().map_or(0, |(offer, _)| {
                u64::from(
                    self.pool
                        .geometry()
                        .slot_size(offer.descriptor(0, 64).slot)
                        .unwrap(),
                )
            });
            assert_eq!(
                process.endpoint.held_bytes(),
                bytes + offered,
                "the private account"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn a_slot_has_one_holder_and_is_never_lost(acts in proptest::collection::vec(any_action(), 0..80)) {
        let mut world = PoolModel::new();
        for act in acts {
            world.apply_action(act);
            world.check_holders();
        }
        world.sweep_and_check();
        for process in world.alive.values_mut() {
            process.held.clear();
            process.offered = None;
        }
        world.rings.clear();
        world.alive.clear();
        world.sweep_and_check();
        prop_assert_eq!(reclaim::slot_usage(&world.pool), BTreeMap::<EndpointId, SlotUsage>::new());
        let member = PoolEndpoint::new(Arc::clone(&world.pool), endpoint_id(u16::MAX), u64::MAX);
        let all: Vec<Lease> = std::iter::from_fn(|| member.claim_slot(64).ok()).collect();
        prop_assert_eq!(all.len(), 5, "every slot is found again");
    }
}

/// A death between clearing a hint and changing the word, or the other way round, leaves a free
/// slot without a hint.
#[test]
fn a_sweep_restores_lost_hints() {
    let pool = Arc::new(SlotPool::create(&CLASS_SPECS, PageKind::Small).unwrap());
    let raw = Region::open_sealed(
        pool.as_fd().try_clone_to_owned().unwrap(),
        pool.region_bytes(),
        MapAccess::Write,
    )
    .unwrap();
    raw.write_bytes(pool.geometry().classes()[0].hints_offset, &[0; 8]);
    let member = PoolEndpoint::new(Arc::clone(&pool), endpoint_id(1), u64::MAX);
    assert_eq!(
        member.claim_slot(64).unwrap().slot_size(),
        256,
        "only the larger class has hints left"
    );
    assert_eq!(
        reclaim::sweep_pool(&pool, |_| true, |_, _, _, _| false).restored_hints,
        3
    );
    assert_eq!(member.claim_slot(64).unwrap().slot_size(), 64);
}

#[test]
fn an_endpoint_cannot_claim_beyond_its_limit() {
    let pool = Arc::new(SlotPool::create(&CLASS_SPECS, PageKind::Small).unwrap());
    let member = PoolEndpoint::new(pool, endpoint_id(1), 128);
    let first = member.claim_slot(64).unwrap();
    let _second = member.claim_slot(1).unwrap();
    assert_eq!(member.claim_slot(64).unwrap_err(), ClaimError::Bound);
    drop(first);
    assert!(member.claim_slot(64).is_ok());
    assert_eq!(member.claim_slot(257).unwrap_err(), ClaimError::TooLarge);
}
