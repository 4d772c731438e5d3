use std::time::Instant;

use nearpath_types::FunctionPolicy;
use proptest::prelude::*;

use super::*;
use crate::peer_states::PeerAvailability;

const NODES: [&str; 3] = ["b", "c", "d"];

/// A change of the own snapshot or of one node.
#[derive(Debug, Clone)]
enum Step {
    Local {
        function: u16,
        place: Option<u8>,
    },
    Load {
        node: usize,
        function: u16,
        load: Option<(u32, u32)>,
    },
    State {
        node: usize,
        state: u8,
    },
    Address {
        node: usize,
        port: u16,
    },
    Remove {
        node: usize,
    },
}

struct World {
    local: RoutingSnapshot,
    peers: PeerStates,
    now: Instant,
}

fn function_id(number: u16) -> FunctionId {
    format!("f{number}").parse().unwrap()
}

/// A function that runs on one of the nodes, or on all.
fn route(function: u16, place: u8) -> FunctionRoute {
    let place = NODES.get(usize::from(place));
    let policy = FunctionPolicy {
        nodes: place.iter().map(|name| name.parse().unwrap()).collect(),
        ..FunctionPolicy::default()
    };
    FunctionRoute {
        address: None,
        id: function_id(function),
        policy: Arc::new(policy),
        replicas: 1,
        instances: Vec::new(),
        runs_here: true,
        remotes: Vec::new(),
        start_failure: None,
    }
}

fn peer_node(node: usize, port: u16) -> Arc<PeerNode> {
    Arc::new(PeerNode {
        name: NODES[node].parse().unwrap(),
        addr: ([192, 0, 2, 1], port).into(),
        incarnation: 1,
    })
}

impl World {
    fn new() -> Self {
        Self {
            local: RoutingSnapshot::default(),
            peers: PeerStates::default(),
            now: Instant::now(),
        }
    }

    fn update_peer(&mut self, node: usize, update: impl FnOnce(&mut PeerStatus)) {
        let now = self.now;
        let new_peer = || {
            let (availability, node) = (PeerAvailability::Up, Some(peer_node(node, 1)));
            Arc::new(PeerStatus {
                availability,
                node,
                ..PeerStatus::new(now)
            })
        };
        let name = NODES[node].parse().unwrap();
        update(Arc::make_mut(
            self.peers.peers.entry(name).or_insert_with(new_peer),
        ));
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Local {
                function,
                place: Some(place),
            } => {
                let route = route(function, place);
                self.local.functions.insert(route.id.clone(), route);
            }
            Step::Local {
                function,
                place: None,
            } => {
                self.local.functions.remove(&function_id(function));
            }
            Step::Load {
                node,
                function,
                load,
            } => self.update_peer(node, |peer| {
                let id = function_id(function);
                match load {
                    Some((ready, requests)) => {
                        drop(peer.functions.insert(id, FunctionLoad { ready, requests }));
                    }
                    None => drop(peer.functions.remove(&id)),
                }
            }),
            Step::State { node, state } => self.update_peer(node, |peer| {
                peer.is_draining = state == 0;
                peer.availability = match state {
                    0 | 1 => PeerAvailability::Up,
                    2 => PeerAvailability::Down {
                        cause: "lost".into(),
                    },
                    _ => PeerAvailability::HeldDown { until: peer.since },
                };
            }),
            Step::Address { node, port } => {
                self.update_peer(node, |peer| peer.node = Some(peer_node(node, port)));
            }
            Step::Remove { node } => {
                let name: NodeName = NODES[node].parse().unwrap();
                self.peers.peers.remove(&name);
            }
        }
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    let (node, function) = (0..NODES.len(), 0u16..30);
    let load = prop::option::weighted(0.7, (0u32..3, 0u32..3));
    prop_oneof![
        4 => (function.clone(), prop::option::weighted(0.7, 0u8..6))
            .prop_map(|(function, place)| Step::Local { function, place }),
        8 => (node.clone(), function, load)
            .prop_map(|(node, function, load)| Step::Load { node, function, load }),
        2 => (node.clone(), 0u8..4).prop_map(|(node, state)| Step::State { node, state }),
        1 => (node.clone(), 1u16..4).prop_map(|(node, port)| Step::Address { node, port }),
        1 => node.prop_map(|node| Step::Remove { node }),
    ]
}

proptest! {
    #[test]
    fn changes_lead_to_the_same_routes_as_a_merge_from_scratch(
        batches in prop::collection::vec(prop::collection::vec(any_step(), 0..8), 1..12),
    ) {
        let mut world = World::new();
        let mut merged = MergedRoutes::default();
        for steps in batches {
            steps.iter().for_each(|step| world.apply(step));
            let next = merge_routes(&world.local, &world.peers, Some(&merged));
            let scratch = merge_routes(&world.local, &world.peers, None);
            prop_assert_eq!(&next.snapshot.functions, &scratch.snapshot.functions);
            prop_assert_eq!(&next.snapshot.nodes, &scratch.snapshot.nodes);
            let is_other = next.snapshot.functions != merged.snapshot.functions
                || next.snapshot.nodes != merged.snapshot.nodes;
            let growth = next.snapshot.version - merged.snapshot.version;
            prop_assert_eq!(growth, u64::from(is_other));
            merged = next;
        }
    }
}

/// Functions 0 to 9, all on two nodes.
fn world_of_two() -> World {
    let mut world = World::new();
    for function in 0..10 {
        world.apply(&Step::Local {
            function,
            place: Some(u8::MAX),
        });
        for node in [1, 0] {
            world.apply(&Step::Load {
                node,
                function,
                load: Some((1, 0)),
            });
        }
    }
    world
}

fn remote_names(merged: &MergedRoutes, function: u16) -> Vec<String> {
    let route = merged
        .snapshot
        .functions
        .get(&function_id(function))
        .unwrap();
    route
        .remotes
        .iter()
        .map(|remote| remote.node.name.to_string())
        .collect()
}

/// Control: a merge that does not learn of a change keeps the old routes.
#[test]
fn a_lost_change_is_noticed() {
    let mut world = world_of_two();
    let mut merged = merge_routes(&world.local, &world.peers, None);
    world.apply(&Step::Load {
        node: 0,
        function: 3,
        load: Some((7, 0)),
    });
    merged.peers = world.peers.clone();
    let next = merge_routes(&world.local, &world.peers, Some(&merged));
    let scratch = merge_routes(&world.local, &world.peers, None);
    assert_ne!(next.snapshot.functions, scratch.snapshot.functions);
}

#[test]
fn nodes_are_sorted_by_name_and_those_that_take_no_calls_are_absent() {
    let mut world = world_of_two();
    let merged = merge_routes(&world.local, &world.peers, None);
    assert_eq!(remote_names(&merged, 4), ["b", "c"]);
    for state in [0, 2, 3] {
        world.apply(&Step::State { node: 0, state });
        let merged = merge_routes(&world.local, &world.peers, Some(&merged));
        assert_eq!(remote_names(&merged, 4), ["c"], "state {state}");
    }
}

#[test]
fn a_node_gets_no_calls_for_functions_that_are_not_placed_on_it() {
    let mut world = World::new();
    world.apply(&Step::Local {
        function: 1,
        place: Some(0),
    });
    for node in 0..2 {
        world.apply(&Step::Load {
            node,
            function: 1,
            load: Some((5, 0)),
        });
        world.apply(&Step::Load {
            node,
            function: 2,
            load: Some((5, 0)),
        });
    }
    let merged = merge_routes(&world.local, &world.peers, None);
    assert_eq!(remote_names(&merged, 1), ["b"]);
    assert!(
        merged.snapshot.functions.get(&function_id(2)).is_none(),
        "unknown here"
    );
}

#[test]
fn a_change_touches_its_function_alone() {
    let mut world = world_of_two();
    let before = merge_routes(&world.local, &world.peers, None);
    world.apply(&Step::Load {
        node: 0,
        function: 3,
        load: Some((7, 0)),
    });
    let after = merge_routes(&world.local, &world.peers, Some(&before));
    let changes = after
        .snapshot
        .functions
        .changes_since(&before.snapshot.functions);
    let ids: Vec<_> = changes.map(|change| change.id.clone()).collect();
    assert_eq!(ids, [function_id(3)]);
}
