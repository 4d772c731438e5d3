//! The registrar against a model: any order of events.

use std::collections::{BTreeMap, BTreeSet};

use nearpath_domain::protocol::ChannelEnding;
use nearpath_domain::topology::{ChannelNumber, DomainTopology, EndpointOwner, TopologyAction};
use nearpath_shm::EndpointId;
use nearpath_types::{FunctionId, InstanceId};
use proptest::prelude::*;

/// Longer than a pair whose channels broke waits for the next one.
const PAST_ALL_BACKOFFS: u64 = 65_000_000_000;
const FUNCTIONS: [&str; 3] = ["f", "g", "h"];

fn function_id(index: usize) -> FunctionId {
    FUNCTIONS[index].parse().unwrap()
}

/// Caller and callee by number; no callee: the gateway.
type ModelEdge = (usize, Option<usize>);

/// Policy of an endpoint for calls.
#[derive(Debug, Clone, Copy, PartialEq)]
enum CallPolicy {
    None,
    Calls,
    /// Those of its instance, while no other endpoint serves them.
    Others,
}

#[derive(Debug, Clone)]
enum TopologyEvent {
    /// Function, instance, calls that the endpoint takes, and whether it makes some.
    Arrive(Option<usize>, u64, CallPolicy, bool),
    Ready(usize),
    Left(usize),
    /// Caller and callee; no callee: the gateway.
    Declare(Vec<ModelEdge>),
    Withdraw(u64),
    /// The nth endpoint that was told answers.
    Drained(usize),
    Tick(u64),
    /// A side of the nth channel, the caller or the callee, reports that it is broken.
    Broken(usize, bool),
    /// The nth channel could not be made after all; whether its callee has heard of it.
    Failed(usize, bool),
    /// The sweep finds that no slot bears the nth resting number.
    Clean(usize),
}

fn any_event() -> impl Strategy<Value = TopologyEvent> {
    let takes = prop_oneof![
        Just(CallPolicy::None),
        Just(CallPolicy::Calls),
        Just(CallPolicy::Others)
    ];
    prop_oneof![
        3 => (proptest::option::of(0..3usize), 0..3u64, takes, any::<bool>()).prop_map(|(f, i, s, calls)| TopologyEvent::Arrive(f, i, s, calls)),
        3 => any::<usize>().prop_map(TopologyEvent::Ready),
        1 => any::<usize>().prop_map(TopologyEvent::Left),
        1 => proptest::collection::vec((0..3usize, proptest::option::weighted(0.8, 0..3usize)), 0..6).prop_map(TopologyEvent::Declare),
        1 => (0..3u64).prop_map(TopologyEvent::Withdraw),
        3 => any::<usize>().prop_map(TopologyEvent::Drained),
        1 => (0..2_000_000_000u64).prop_map(TopologyEvent::Tick),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(n, caller)| TopologyEvent::Broken(n, caller)),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(n, told)| TopologyEvent::Failed(n, told)),
        1 => any::<usize>().prop_map(TopologyEvent::Clean),
    ]
}

/// Knowledge of the model outside.
#[derive(Default)]
struct TopologyModel {
    endpoints: BTreeMap<EndpointId, (EndpointOwner, CallPolicy, bool)>,
    /// Endpoints that never call.
    servers: BTreeSet<EndpointId>,
    edges: BTreeSet<ModelEdge>,
    withdrawn: BTreeSet<InstanceId>,
    /// Of these, whose open calls have ended, as told.
    quiet: BTreeSet<InstanceId>,
    /// Channels with their two sides, and who has still to let go.
    channels: BTreeMap<ChannelNumber, (EndpointId, EndpointId)>,
    told: Vec<(EndpointId, ChannelNumber)>,
    numbers: BTreeSet<ChannelNumber>,
    borne: BTreeSet<EndpointId>,
    now: u64,
}

impl TopologyModel {
    fn apply_actions(&mut self, actions: Vec<TopologyAction>) {
        for action in actions {
            match action {
                TopologyAction::Open {
                    channel,
                    caller,
                    callee,
                } => {
                    assert!(self.numbers.insert(channel), "a channel's number twice");
                    assert!(
                        self.endpoints.contains_key(&caller)
                            && self.endpoints.contains_key(&callee)
                    );
                    assert!(
                        !self.channels.values().any(|pair| *pair == (caller, callee)),
                        "two for one pair"
                    );
                    assert!(
                        !self.servers.contains(&caller),
                        "a channel for an endpoint that never calls"
                    );
                    self.channels.insert(channel, (caller, callee));
                }
                TopologyAction::Notify {
                    endpoint,
                    channel,
                    state,
                } => {
                    assert!(
                        self.endpoints.contains_key(&endpoint),
                        "the dead are told nothing"
                    );
                    let (caller, callee) = self.channels[&channel];
                    assert!(endpoint == caller || endpoint == callee);
                    assert!(
                        state == ChannelEnding::Dead || endpoint == caller,
                        "only callers hear of a withdrawal"
                    );
                    self.told.push((endpoint, channel));
                }
                TopologyAction::Forget { channel } => drop(self.channels.remove(&channel)),
                TopologyAction::Close { channel, .. } => {
                    assert!(self.channels.contains_key(&channel))
                }
                TopologyAction::Quiet { instance } => {
                    assert!(self.withdrawn.contains(&instance));
                    self.quiet.insert(instance);
                }
                TopologyAction::Sweep => {}
            }
        }
    }

    fn pick_nth<T: Copy>(from: impl Iterator<Item = T>, n: usize) -> Option<T> {
        let all: Vec<T> = from.collect();
        (!all.is_empty()).then(|| all[n % all.len()])
    }

    fn wanted_channels(&self) -> BTreeSet<(EndpointId, EndpointId)> {
        let index = |who: &EndpointOwner| {
            who.function()
                .map(|f| (0..3).find(|&k| function_id(k) == *f).unwrap())
        };
        let mut wanted = BTreeSet::new();
        let served = |instance| {
            let mut all = self.endpoints.values();
            all.any(|(who, takes, ready)| {
                who.instance() == instance && *takes == CallPolicy::Calls && *ready
            })
        };
        let event_gateway = self.endpoints.iter().find(|(_, (who, takes, ready))| {
            *who == EndpointOwner::Gateway && *takes != CallPolicy::None && *ready
        });
        let event_gateway = event_gateway.map(|(&endpoint, _)| endpoint);
        for (&p, (caller, _, _)) in &self.endpoints {
            for (&q, (callee, kind, ready)) in &self.endpoints {
                let declared = match (index(caller), index(callee)) {
                    (None, to) => to.is_some(),
                    (Some(by), to) => self.edges.contains(&(by, to)),
                };
                let serves = *kind == CallPolicy::Calls
                    || *kind == CallPolicy::Others && !served(callee.instance());
                let takes = match callee.instance() {
                    Some(instance) => serves && *ready && !self.withdrawn.contains(&instance),
                    None => event_gateway == Some(q),
                };
                if p != q && declared && takes && !self.servers.contains(&p) {
                    wanted.insert((p, q));
                }
            }
        }
        wanted
    }
}

/// An endpoint that lives says that a channel of its own is broken, whatever becomes of it already.
fn break_channel(
    topology: &mut DomainTopology,
    model: &TopologyModel,
    n: usize,
    by_caller: bool,
) -> Vec<TopologyAction> {
    let all = model
        .channels
        .iter()
        .map(|(&channel, &sides)| (channel, sides));
    let Some((channel, (caller, callee))) = TopologyModel::pick_nth(all, n) else {
        return Vec::new();
    };
    let by = if by_caller { caller } else { callee };
    let lives = model.endpoints.contains_key(&by);
    if lives {
        topology.handle_broken(by, channel, model.now).unwrap()
    } else {
        Vec::new()
    }
}

fn remove_endpoint(
    topology: &mut DomainTopology,
    model: &mut TopologyModel,
    n: usize,
) -> Vec<TopologyAction> {
    let Some(endpoint) = TopologyModel::pick_nth(model.endpoints.keys().copied(), n) else {
        return Vec::new();
    };
    model.endpoints.remove(&endpoint);
    model.told.retain(|(told, _)| *told != endpoint);
    topology.remove_endpoint(endpoint, model.now)
}

#[allow(clippy::too_many_lines, reason = "one arm an event, each a few lines")]
fn apply_event(topology: &mut DomainTopology, model: &mut TopologyModel, event: TopologyEvent) {
    let actions = match event {
        TopologyEvent::Arrive(f, instance, takes, calls) => {
            let who = f.map_or(EndpointOwner::Gateway, |f| {
                EndpointOwner::Instance(InstanceId(instance + 10 * f as u64), function_id(f))
            });
            let endpoint = topology
                .reserve_endpoint(who.clone(), takes != CallPolicy::None)
                .unwrap();
            if takes == CallPolicy::Others {
                topology.set_standby(endpoint);
            }
            // Numbers are given again.
            model.servers.remove(&endpoint);
            if !calls {
                topology.set_serves_only(endpoint);
                model.servers.insert(endpoint);
            }
            assert!(
                !model.borne.contains(&endpoint),
                "a number that slots bear was given again"
            );
            assert!(!model.told.iter().any(|(_, c)| {
                model
                    .channel_sides(*c)
                    .is_some_and(|(p, q)| p == endpoint || q == endpoint)
            }));
            model.borne.insert(endpoint);
            model.endpoints.insert(endpoint, (who, takes, false));
            topology.complete_endpoint(endpoint)
        }
        TopologyEvent::Ready(n) => {
            match TopologyModel::pick_nth(model.endpoints.keys().copied(), n) {
                Some(endpoint) => {
                    model.endpoints.get_mut(&endpoint).unwrap().2 = true;
                    topology.mark_ready(endpoint)
                }
                None => Vec::new(),
            }
        }
        TopologyEvent::Left(n) => remove_endpoint(topology, model, n),
        TopologyEvent::Declare(edges) => {
            model.edges = edges.iter().copied().collect();
            topology.declare_edges(
                edges
                    .into_iter()
                    .map(|(by, to)| (function_id(by), to.map(function_id))),
            )
        }
        TopologyEvent::Withdraw(instance) => {
            model.withdrawn.insert(InstanceId(instance));
            topology.withdraw_instance(InstanceId(instance))
        }
        TopologyEvent::Drained(n) => match TopologyModel::pick_nth(model.told.iter().copied(), n) {
            Some((endpoint, channel)) => {
                let at = model
                    .told
                    .iter()
                    .position(|told| *told == (endpoint, channel))
                    .unwrap();
                model.told.remove(at);
                topology
                    .handle_drained(endpoint, channel, model.now)
                    .unwrap_or_default()
            }
            None => Vec::new(),
        },
        TopologyEvent::Broken(n, by_caller) => break_channel(topology, model, n, by_caller),
        TopologyEvent::Failed(n, told) => {
            match TopologyModel::pick_nth(topology.open_channels(), n) {
                Some((channel, _, callee)) => {
                    topology.handle_failed(channel, told.then_some(callee), model.now)
                }
                None => Vec::new(),
            }
        }
        TopologyEvent::Tick(by) => {
            model.now += by;
            topology.tick(model.now)
        }
        TopologyEvent::Clean(n) => {
            if let Some(endpoint) = TopologyModel::pick_nth(topology.resting_ids(), n) {
                model.borne.remove(&endpoint);
                topology.release_id(endpoint);
            }
            Vec::new()
        }
    };
    model.apply_actions(actions);
}

impl TopologyModel {
    fn channel_sides(&self, channel: ChannelNumber) -> Option<(EndpointId, EndpointId)> {
        self.channels.get(&channel).copied()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]
    #[test]
    fn open_channels_are_the_declared_edges_between_live_endpoints(events in proptest::collection::vec(any_event(), 0..80)) {
        let (mut topology, mut model) = (DomainTopology::new(), TopologyModel::default());
        for event in events {
            apply_event(&mut topology, &mut model, event);
            let open: BTreeSet<_> = topology.open_channels().map(|(_, p, q)| (p, q)).collect();
            prop_assert!(open.is_subset(&model.wanted_channels()), "an edge that is not declared, or a party that is not there");
        }
        // Everybody lets go: then nothing is missing either.
        while !model.told.is_empty() {
            apply_event(&mut topology, &mut model, TopologyEvent::Drained(0));
        }
        apply_event(&mut topology, &mut model, TopologyEvent::Tick(PAST_ALL_BACKOFFS));
        prop_assert_eq!(&model.quiet, &model.withdrawn, "who waits for an instance's last call hears of it");
        let open: BTreeSet<_> = topology.open_channels().map(|(_, p, q)| (p, q)).collect();
        prop_assert_eq!(&open, &model.wanted_channels());
        let mapped: BTreeSet<_> = model.channels.values().copied().collect();
        prop_assert_eq!(mapped, open, "what is let go of is forgotten");
        let resting: Vec<_> = topology.resting_ids().collect();
        resting.into_iter().for_each(|endpoint| topology.release_id(endpoint));
        prop_assert_eq!(topology.resting_ids().count(), 0, "in the end every number is free again");
    }
}

fn add_endpoint(topology: &mut DomainTopology, who: EndpointOwner, serves: bool) -> EndpointId {
    let endpoint = topology.reserve_endpoint(who, serves).unwrap();
    topology.complete_endpoint(endpoint);
    endpoint
}

#[test]
fn repeated_breaks_delay_the_next_channel_exponentially() {
    let mut topology = DomainTopology::new();
    let callee = EndpointOwner::Instance(InstanceId(1), function_id(0));
    let caller = add_endpoint(&mut topology, EndpointOwner::Gateway, false);
    let callee = add_endpoint(&mut topology, callee, true);
    let opened = |actions: &[TopologyAction]| {
        actions.iter().find_map(|action| {
            if let TopologyAction::Open { channel, .. } = action {
                Some(*channel)
            } else {
                None
            }
        })
    };
    let mut channel = opened(&topology.mark_ready(callee)).unwrap();
    let (mut now, mut waits) = (7, Vec::new());
    for _ in 0..9 {
        let told = topology.handle_broken(caller, channel, now).unwrap();
        assert!(told.contains(&TopologyAction::Notify {
            endpoint: callee,
            channel,
            state: ChannelEnding::Dead
        }));
        assert_eq!(
            topology.handle_broken(callee, channel, now).unwrap(),
            [],
            "it has been told: its `drained` comes"
        );
        assert_eq!(
            opened(&topology.handle_drained(callee, channel, now).unwrap()),
            None
        );
        let next = topology.next_tick(now).unwrap();
        assert_eq!(opened(&topology.tick(next - 1)), None);
        channel = opened(&topology.tick(next)).unwrap();
        waits.push((next - now) / 1_000_000_000);
        now = next;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    assert!(
        topology
            .handle_broken(EndpointId::new(999).unwrap(), channel, now)
            .is_err(),
        "that is no channel of its own"
    );
}

#[test]
fn a_withdrawn_instance_is_quiet_when_its_last_caller_disconnects() {
    let mut topology = DomainTopology::new();
    let caller = add_endpoint(&mut topology, EndpointOwner::Gateway, false);
    let callee = EndpointOwner::Instance(InstanceId(1), function_id(0));
    let callee = add_endpoint(&mut topology, callee, true);
    topology.mark_ready(callee);
    let quiet = TopologyAction::Quiet {
        instance: InstanceId(1),
    };
    assert!(
        !topology.withdraw_instance(InstanceId(1)).contains(&quiet),
        "its caller may have calls open"
    );
    assert!(topology.remove_endpoint(caller, 7).contains(&quiet));
}

#[test]
fn a_second_withdrawal_is_answered_with_quiet_again() {
    let mut topology = DomainTopology::new();
    let caller = add_endpoint(&mut topology, EndpointOwner::Gateway, false);
    let callee = EndpointOwner::Instance(InstanceId(1), function_id(0));
    let callee = add_endpoint(&mut topology, callee, true);
    topology.mark_ready(callee);
    let quiet = TopologyAction::Quiet {
        instance: InstanceId(1),
    };
    topology.withdraw_instance(InstanceId(1));
    assert_eq!(
        topology.withdraw_instance(InstanceId(1)),
        [],
        "its caller may have calls open"
    );
    assert!(topology.remove_endpoint(caller, 7).contains(&quiet));
    assert_eq!(topology.withdraw_instance(InstanceId(1)), [quiet]);
}
