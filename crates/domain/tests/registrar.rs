//! The registrar against a model: any order of events.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use nearpath_domain::protocol::End;
use nearpath_domain::registrar::{Action, Channel, Registrar, Who};
use nearpath_shm::Party;
use nearpath_types::{FunctionId, InstanceId};
use proptest::prelude::*;

/// Longer than a pair whose channels broke waits for the next one.
const LONG: u64 = 65_000_000_000;
const FUNCTIONS: [&str; 3] = ["f", "g", "h"];

fn function(index: usize) -> FunctionId {
    FUNCTIONS[index].parse().unwrap()
}

/// What a party does about calls.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Takes {
    None,
    Calls,
    /// Those of its instance, while nobody else does.
    Others,
}

#[derive(Debug, Clone)]
enum Event {
    Arrive(Option<usize>, u64, Takes),
    Ready(usize),
    Left(usize),
    Declare(Vec<(usize, usize)>),
    Withdraw(u64),
    /// The nth party that was told answers.
    Drained(usize),
    Tick(u64),
    /// One side of the nth channel, the caller or the callee, says that it is broken.
    Broken(usize, bool),
    /// The nth channel could not be made after all; whether its callee has heard of it.
    Failed(usize, bool),
    /// The sweep finds that no slot bears the nth resting number.
    Clean(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let takes = prop_oneof![Just(Takes::None), Just(Takes::Calls), Just(Takes::Others)];
    prop_oneof![
        3 => (proptest::option::of(0..3usize), 0..3u64, takes).prop_map(|(f, i, s)| Event::Arrive(f, i, s)),
        3 => any::<usize>().prop_map(Event::Ready),
        1 => any::<usize>().prop_map(Event::Left),
        1 => proptest::collection::vec((0..3usize, 0..3usize), 0..6).prop_map(Event::Declare),
        1 => (0..3u64).prop_map(Event::Withdraw),
        3 => any::<usize>().prop_map(Event::Drained),
        1 => (0..2_000_000_000u64).prop_map(Event::Tick),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(n, caller)| Event::Broken(n, caller)),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(n, told)| Event::Failed(n, told)),
        1 => any::<usize>().prop_map(Event::Clean),
    ]
}

/// What the world outside knows.
#[derive(Default)]
struct World {
    parties: BTreeMap<Party, (Who, Takes, bool)>,
    edges: BTreeSet<(usize, usize)>,
    withdrawn: BTreeSet<InstanceId>,
    /// Of these, whose open calls have ended, as told.
    quiet: BTreeSet<InstanceId>,
    /// Channels with their two sides, and who has still to let go.
    channels: BTreeMap<Channel, (Party, Party)>,
    told: Vec<(Party, Channel)>,
    numbers: BTreeSet<Channel>,
    borne: BTreeSet<Party>,
    now: u64,
}

impl World {
    fn does(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Open { channel, caller, callee } => {
                    assert!(self.numbers.insert(channel), "a channel's number twice");
                    assert!(self.parties.contains_key(&caller) && self.parties.contains_key(&callee));
                    assert!(!self.channels.values().any(|pair| *pair == (caller, callee)), "two for one pair");
                    self.channels.insert(channel, (caller, callee));
                }
                Action::Tell { party, channel, state } => {
                    assert!(self.parties.contains_key(&party), "the dead are told nothing");
                    let (caller, callee) = self.channels[&channel];
                    assert!(party == caller || party == callee);
                    assert!(state == End::Dead || party == caller, "only callers hear of a withdrawal");
                    self.told.push((party, channel));
                }
                Action::Forget { channel } => drop(self.channels.remove(&channel)),
                Action::Close { channel, .. } => assert!(self.channels.contains_key(&channel)),
                Action::Quiet { instance } => {
                    assert!(self.withdrawn.contains(&instance));
                    self.quiet.insert(instance);
                }
                Action::Sweep => {}
            }
        }
    }

    fn pick<T: Copy>(from: impl Iterator<Item = T>, n: usize) -> Option<T> {
        let all: Vec<T> = from.collect();
        (!all.is_empty()).then(|| all[n % all.len()])
    }

    fn wanted(&self) -> BTreeSet<(Party, Party)> {
        let index = |who: &Who| who.function().map(|f| (0..3).find(|&k| function(k) == *f).unwrap());
        let mut wanted = BTreeSet::new();
        let served = |instance| {
            let mut all = self.parties.values();
            all.any(|(who, takes, ready)| who.instance() == instance && *takes == Takes::Calls && *ready)
        };
        for (&p, (caller, _, _)) in &self.parties {
            for (&q, (callee, kind, ready)) in &self.parties {
                let Some(to) = index(callee) else { continue };
                let declared = index(caller).is_none_or(|by| self.edges.contains(&(by, to)));
                let serves = *kind == Takes::Calls || *kind == Takes::Others && !served(callee.instance());
                let takes = serves && *ready && !self.withdrawn.contains(&callee.instance().unwrap());
                if p != q && declared && takes {
                    wanted.insert((p, q));
                }
            }
        }
        wanted
    }
}

/// A party that lives says that a channel of its own is broken, whatever becomes of it already.
fn broken(registrar: &mut Registrar, world: &World, n: usize, by_caller: bool) -> Vec<Action> {
    let all = world.channels.iter().map(|(&channel, &sides)| (channel, sides));
    let Some((channel, (caller, callee))) = World::pick(all, n) else { return Vec::new() };
    let by = if by_caller { caller } else { callee };
    let lives = world.parties.contains_key(&by);
    if lives { registrar.broken(by, channel, world.now).unwrap() } else { Vec::new() }
}

fn left(registrar: &mut Registrar, world: &mut World, n: usize) -> Vec<Action> {
    let Some(party) = World::pick(world.parties.keys().copied(), n) else { return Vec::new() };
    world.parties.remove(&party);
    world.told.retain(|(told, _)| *told != party);
    registrar.left(party, world.now)
}

fn step(registrar: &mut Registrar, world: &mut World, event: Event) {
    let actions = match event {
        Event::Arrive(f, instance, takes) => {
            let who = f.map_or(Who::Gateway, |f| Who::Instance(InstanceId(instance + 10 * f as u64), function(f)));
            let (party, actions) = registrar.arrive(who.clone(), takes != Takes::None).unwrap();
            if takes == Takes::Others {
                registrar.stand_in(party);
            }
            assert!(!world.borne.contains(&party), "a number that slots bear was given again");
            assert!(!world.told.iter().any(|(_, c)| world.sides(*c).is_some_and(|(p, q)| p == party || q == party)));
            world.borne.insert(party);
            world.parties.insert(party, (who, takes, false));
            actions
        }
        Event::Ready(n) => match World::pick(world.parties.keys().copied(), n) {
            Some(party) => {
                world.parties.get_mut(&party).unwrap().2 = true;
                registrar.ready(party)
            }
            None => Vec::new(),
        },
        Event::Left(n) => left(registrar, world, n),
        Event::Declare(edges) => {
            world.edges = edges.iter().copied().collect();
            registrar.declare(edges.into_iter().map(|(by, to)| (function(by), function(to))))
        }
        Event::Withdraw(instance) => {
            world.withdrawn.insert(InstanceId(instance));
            registrar.withdraw(InstanceId(instance))
        }
        Event::Drained(n) => match World::pick(world.told.iter().copied(), n) {
            Some((party, channel)) => {
                let at = world.told.iter().position(|told| *told == (party, channel)).unwrap();
                world.told.remove(at);
                registrar.drained(party, channel, world.now).unwrap_or_default()
            }
            None => Vec::new(),
        },
        Event::Broken(n, by_caller) => broken(registrar, world, n, by_caller),
        Event::Failed(n, told) => match World::pick(registrar.open_channels(), n) {
            Some((channel, _, callee)) => registrar.failed(channel, told.then_some(callee), world.now),
            None => Vec::new(),
        },
        Event::Tick(by) => {
            world.now += by;
            registrar.tick(world.now)
        }
        Event::Clean(n) => {
            if let Some(party) = World::pick(registrar.resting(), n) {
                world.borne.remove(&party);
                registrar.rested(party);
            }
            Vec::new()
        }
    };
    world.does(actions);
}

impl World {
    fn sides(&self, channel: Channel) -> Option<(Party, Party)> {
        self.channels.get(&channel).copied()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]
    #[test]
    fn channels_are_the_declared_edges_of_the_living(events in proptest::collection::vec(event(), 0..80)) {
        let (mut registrar, mut world) = (Registrar::new(), World::default());
        for event in events {
            step(&mut registrar, &mut world, event);
            let open: BTreeSet<_> = registrar.open_channels().map(|(_, p, q)| (p, q)).collect();
            prop_assert!(open.is_subset(&world.wanted()), "an edge that is not declared, or a party that is not there");
        }
        // Everybody lets go: then nothing is missing either.
        while !world.told.is_empty() {
            step(&mut registrar, &mut world, Event::Drained(0));
        }
        step(&mut registrar, &mut world, Event::Tick(LONG));
        prop_assert_eq!(&world.quiet, &world.withdrawn, "who waits for an instance's last call hears of it");
        let open: BTreeSet<_> = registrar.open_channels().map(|(_, p, q)| (p, q)).collect();
        prop_assert_eq!(&open, &world.wanted());
        let mapped: BTreeSet<_> = world.channels.values().copied().collect();
        prop_assert_eq!(mapped, open, "what is let go of is forgotten");
        let resting: Vec<_> = registrar.resting().collect();
        resting.into_iter().for_each(|party| registrar.rested(party));
        prop_assert_eq!(registrar.resting().count(), 0, "in the end every number is free again");
    }
}

#[test]
fn who_breaks_every_channel_gets_the_next_one_later_each_time() {
    let mut registrar = Registrar::new();
    let callee = Who::Instance(InstanceId(1), function(0));
    let (caller, _) = registrar.arrive(Who::Gateway, false).unwrap();
    let (callee, _) = registrar.arrive(callee, true).unwrap();
    let opened = |actions: &[Action]| {
        actions.iter().find_map(|action| if let Action::Open { channel, .. } = action { Some(*channel) } else { None })
    };
    let mut channel = opened(&registrar.ready(callee)).unwrap();
    let (mut now, mut waits) = (7, Vec::new());
    for _ in 0..9 {
        let told = registrar.broken(caller, channel, now).unwrap();
        assert!(told.contains(&Action::Tell { party: callee, channel, state: End::Dead }));
        assert_eq!(registrar.broken(callee, channel, now).unwrap(), [], "it has been told: its `drained` comes");
        assert_eq!(opened(&registrar.drained(callee, channel, now).unwrap()), None);
        let next = registrar.next_tick(now).unwrap();
        assert_eq!(opened(&registrar.tick(next - 1)), None);
        channel = opened(&registrar.tick(next)).unwrap();
        waits.push((next - now) / 1_000_000_000);
        now = next;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    assert!(registrar.broken(Party::new(999).unwrap(), channel, now).is_err(), "that is no channel of its own");
}

#[test]
fn a_withdrawn_instance_is_quiet_when_its_last_caller_leaves_without_a_word() {
    let mut registrar = Registrar::new();
    let (caller, _) = registrar.arrive(Who::Gateway, false).unwrap();
    let (callee, _) = registrar.arrive(Who::Instance(InstanceId(1), function(0)), true).unwrap();
    registrar.ready(callee);
    let quiet = Action::Quiet { instance: InstanceId(1) };
    assert!(!registrar.withdraw(InstanceId(1)).contains(&quiet), "its caller may have calls open");
    assert!(registrar.left(caller, 7).contains(&quiet));
}
