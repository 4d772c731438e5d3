//! Refused graphs with their error texts, and properties of the expansion.

use proptest::prelude::*;

use super::{GraphEdge, GraphStage, StageGraph};
use crate::topology::{Distribution, TopologyError, TopologyLimits, default_linger};

fn graph(stages: &[(&str, usize)], edges: &[(&str, &str, Distribution)]) -> StageGraph {
    let stage = |&(name, workers): &(&str, usize)| GraphStage {
        name: name.to_owned(),
        workers,
        max_workers: None,
    };
    let edge = |&(from, to, distribution): &(&str, &str, Distribution)| GraphEdge {
        from: from.to_owned(),
        to: to.to_owned(),
        distribution,
        spill: false,
        linger: default_linger(),
    };
    StageGraph {
        stages: stages.iter().map(stage).collect(),
        edges: edges.iter().map(edge).collect(),
    }
}

fn expansion_errors(graph: &StageGraph) -> Vec<TopologyError> {
    graph
        .expand(TopologyLimits::default())
        .map(|_| Vec::new())
        .unwrap_or_else(|errors| errors.0)
}

#[test]
fn shuffle_connects_every_pair_of_workers() {
    let graph = graph(
        &[("map", 3), ("reduce", 2), ("out", 1)],
        &[
            ("map", "reduce", Distribution::ByKey),
            ("reduce", "out", Distribution::Gather),
        ],
    );
    let topology = graph.expand(TopologyLimits::default()).unwrap();
    assert_eq!(topology.workers.len(), 6);
    assert_eq!(
        topology
            .find_worker("map.2")
            .unwrap()
            .target_streams()
            .count(),
        2
    );
    assert_eq!(
        topology
            .find_worker("reduce.1")
            .unwrap()
            .source_streams()
            .count(),
        3
    );
    assert_eq!(
        topology
            .find_worker("out.0")
            .unwrap()
            .source_streams()
            .map(|from| &*from.worker)
            .collect::<Vec<_>>(),
        ["reduce.0", "reduce.1"]
    );
}

#[test]
fn a_cycle_is_reported_with_all_its_stages() {
    let graph = graph(
        &[("a", 1), ("b", 1), ("c", 1)],
        &[
            ("a", "b", Distribution::Gather),
            ("b", "c", Distribution::Gather),
            ("c", "b", Distribution::Gather),
        ],
    );
    let [TopologyError::Cycle(round)] = &expansion_errors(&graph)[..] else {
        panic!("{:?}", expansion_errors(&graph))
    };
    assert_eq!(round, &["b", "c", "b"]);
    assert!(
        expansion_errors(&graph)[0]
            .to_string()
            .contains("b -> c -> b")
    );
}

#[test]
fn an_edge_to_its_own_stage_is_a_cycle() {
    assert_eq!(
        expansion_errors(&graph(&[("a", 1)], &[("a", "a", Distribution::Gather)])),
        [TopologyError::Cycle(vec!["a".into(), "a".into()])]
    );
}

#[test]
fn all_errors_are_reported_at_once() {
    let graph = graph(
        &[("a", 2), ("a", 1), ("b", 3), ("c", 0), ("../x", 1)],
        &[
            ("a", "b", Distribution::OneToOne),
            ("a", "nobody", Distribution::Spread),
            ("a", "b", Distribution::Gather),
        ],
    );
    let all = expansion_errors(&graph);
    let has = |flaw: &TopologyError| assert!(all.contains(flaw), "{flaw} is not in {all:?}");
    has(&TopologyError::DuplicateName("a".into()));
    has(&TopologyError::InvalidName("../x".into()));
    has(&TopologyError::NoWorkers("c".into()));
    has(&TopologyError::UnknownWorker {
        worker: "a".into(),
        other: "nobody".into(),
    });
    has(&TopologyError::UnequalWorkers {
        from: "a".into(),
        to: "b".into(),
        left: 2,
        right: 3,
    });
    has(&TopologyError::GatherToMany {
        to: "b".into(),
        workers: 3,
    });
    has(&TopologyError::DuplicateEdge {
        from: "a".into(),
        to: "b".into(),
    });
}

#[test]
fn fan_in_has_a_limit() {
    let graph = graph(
        &[("many", 9), ("one", 1)],
        &[("many", "one", Distribution::Gather)],
    );
    let refused = graph
        .expand(TopologyLimits {
            fan_in: 8,
            ..TopologyLimits::default()
        })
        .unwrap_err();
    assert_eq!(
        refused.0,
        [TopologyError::FanIn {
            worker: "one.0".into(),
            has: 9,
            limit: 8
        }]
    );
    let refused = graph
        .expand(TopologyLimits {
            workers: 9,
            ..TopologyLimits::default()
        })
        .unwrap_err();
    assert_eq!(
        refused.0,
        [TopologyError::TooManyWorkers { has: 10, limit: 9 }]
    );
}

#[test]
fn diagrams_name_every_stage_and_edge() {
    let graph = graph(
        &[("map", 3), ("reduce", 2)],
        &[("map", "reduce", Distribution::ByKey)],
    );
    assert!(
        graph
            .to_dot()
            .contains("\"map\" -> \"reduce\" [label=\"by-key\"]")
    );
    let svg = graph.to_svg();
    assert!(
        svg.contains(">map<") && svg.contains(">reduce<") && svg.contains(">by-key<"),
        "{svg}"
    );
}

fn scalable_graph(how_in: Distribution, how_out: Distribution, max_workers: usize) -> StageGraph {
    let mut graph = graph(
        &[("feed", 2), ("work", 2), ("out", 2)],
        &[("feed", "work", how_in), ("work", "out", how_out)],
    );
    graph.stages[1].max_workers = Some(max_workers);
    graph
}

#[test]
fn additional_workers_are_part_of_the_topology_as_spares() {
    let topology = scalable_graph(Distribution::Spread, Distribution::ByKey, 5)
        .expand(TopologyLimits::default())
        .unwrap();
    let spares: Vec<&str> = topology
        .workers
        .iter()
        .filter(|worker| worker.spare)
        .map(|worker| &*worker.name)
        .collect();
    assert_eq!(spares, ["work.2", "work.3", "work.4"]);
    let is_pending = |stream: &crate::topology::StreamSpec| stream.pending;
    assert_eq!(
        topology
            .find_worker("feed.1")
            .unwrap()
            .target_streams()
            .filter(|to| is_pending(to))
            .count(),
        3
    );
    assert_eq!(
        topology
            .find_worker("out.0")
            .unwrap()
            .source_streams()
            .filter(|from| is_pending(from))
            .count(),
        3
    );
    assert_eq!(
        topology
            .find_worker("work.3")
            .unwrap()
            .source_streams()
            .filter(|from| is_pending(from))
            .count(),
        0
    );
    let graph = scalable_graph(Distribution::Spread, Distribution::ByKey, 5);
    assert!(
        graph
            .to_dot()
            .contains("\"work\" [label=\"work × 2–5\", style=dashed]"),
        "{}",
        graph.to_dot()
    );
    assert_eq!(graph.to_svg().matches("stroke-dasharray").count(), 1);
}

#[test]
fn spares_count_towards_the_limits_and_are_reached_only_by_spread() {
    let limits = TopologyLimits {
        fan_in: 4,
        ..TopologyLimits::default()
    };
    let refused = scalable_graph(Distribution::Spread, Distribution::ByKey, 5)
        .expand(limits)
        .unwrap_err();
    assert_eq!(
        refused.0,
        [TopologyError::FanIn {
            worker: "out.0".into(),
            has: 5,
            limit: 4
        }]
    );
    for distribution in [
        Distribution::ByKey,
        Distribution::OneToOne,
        Distribution::Broadcast,
    ] {
        let grows = TopologyError::ScalableTarget {
            from: "feed".into(),
            to: "work".into(),
            distribution,
        };
        assert_eq!(
            expansion_errors(&scalable_graph(distribution, Distribution::ByKey, 5)),
            [grows]
        );
    }
    let from = TopologyError::ScalableSource {
        from: "work".into(),
        to: "out".into(),
    };
    assert_eq!(
        expansion_errors(&scalable_graph(
            Distribution::Spread,
            Distribution::OneToOne,
            5
        )),
        [from]
    );
    assert_eq!(
        expansion_errors(&scalable_graph(
            Distribution::Spread,
            Distribution::ByKey,
            1
        )),
        [TopologyError::MaxBelowWorkers {
            stage: "work".into(),
            workers: 2,
            max_workers: 1
        }]
    );
    let mut alone = graph(&[("source", 1)], &[]);
    alone.stages[0].max_workers = Some(2);
    assert_eq!(
        expansion_errors(&alone),
        [TopologyError::UnreachableSpare("source".into())]
    );
}

/// Graphs whose edges lead only to later stages.
fn any_forward_graph() -> impl Strategy<Value = StageGraph> {
    let stages = prop::collection::vec(1..5_usize, 2..6);
    let edges = prop::collection::btree_set((0..5_usize, 1..5_usize), 0..8);
    let hows = prop::collection::vec(0..3_usize, 8);
    let more = prop::collection::vec(0..3_usize, 6);
    (stages, edges, hows, more).prop_map(|(workers, edges, hows, more)| {
        let count = workers.len();
        let name = |at: usize| format!("s{at}");
        let stages = workers
            .iter()
            .enumerate()
            .map(|(at, &workers)| GraphStage {
                name: name(at),
                workers,
                max_workers: None,
            })
            .collect();
        let fits = edges.into_iter().filter(|&(from, by)| from + by < count);
        let edge = |((from, by), distribution): ((usize, usize), usize)| GraphEdge {
            from: name(from),
            to: name(from + by),
            distribution: [
                Distribution::ByKey,
                Distribution::Broadcast,
                Distribution::Spread,
            ][distribution],
            spill: distribution == 1,
            linger: default_linger(),
        };
        let mut graph = StageGraph {
            stages,
            edges: fits.zip(hows).map(edge).collect(),
        };
        for (stage, more) in graph.stages.iter_mut().zip(more) {
            let mut into = graph
                .edges
                .iter()
                .filter(|edge| edge.to == stage.name)
                .peekable();
            let may_grow =
                into.peek().is_some() && into.all(|edge| edge.distribution == Distribution::Spread);
            stage.max_workers = may_grow.then_some(stage.workers + more);
        }
        graph
    })
}

proptest! {
    #[test]
    fn forward_graphs_expand(graph in any_forward_graph()) {
        let topology = graph.expand(TopologyLimits::default()).unwrap();
        let written: usize = topology.workers.iter().map(|worker| worker.target_streams().count()).sum();
        let read: usize = topology.workers.iter().map(|worker| worker.source_streams().count()).sum();
        prop_assert_eq!(written, read);
        prop_assert_eq!(topology.workers.len(), graph.stages.iter().map(GraphStage::max_workers).sum::<usize>());
        let again = serde_json::to_string(&topology).unwrap();
        prop_assert_eq!(crate::topology::JobTopology::from_json(&again).unwrap(), topology);
    }

    #[test]
    fn one_edge_back_is_a_cycle(graph in any_forward_graph(), pick in any::<prop::sample::Index>()) {
        prop_assume!(!graph.edges.is_empty());
        let mut graph = graph;
        let turned = pick.get(&graph.edges).clone();
        graph.edges.push(GraphEdge { from: turned.to, to: turned.from, distribution: Distribution::Spread, spill: false, linger: default_linger() });
        prop_assert!(expansion_errors(&graph).iter().any(|flaw| matches!(flaw, TopologyError::Cycle(_))));
    }
}

#[test]
fn the_linger_of_an_edge_reaches_its_outputs_and_invalid_ones_are_refused() {
    let mut graph = graph(&[("a", 1), ("b", 2)], &[("a", "b", Distribution::Spread)]);
    assert!(!serde_json::to_string(&graph).unwrap().contains("linger"));
    for linger in [Some(0.0), Some(2.5), None] {
        graph.edges[0].linger = linger;
        let graph = StageGraph::from_json(&serde_json::to_string(&graph).unwrap()).unwrap();
        let topology = graph.expand(TopologyLimits::default()).unwrap();
        let outputs = topology.workers[0].target_streams();
        assert_eq!(
            outputs.map(|to| to.linger).collect::<Vec<_>>(),
            [linger, linger]
        );
    }
    graph.edges[0].linger = Some(-1.0);
    let errors = graph.expand(TopologyLimits::default()).unwrap_err();
    assert!(
        errors
            .to_string()
            .contains("invalid linger of the edge from `a` to `b`"),
        "{errors}"
    );
}
