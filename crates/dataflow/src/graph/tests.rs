//! Graphs that are refused with words that help, and laws of expansion.

use proptest::prelude::*;

use super::{Edge, Graph, Stage};
use crate::topology::{Flaw, How, Limits};

fn graph(stages: &[(&str, usize)], edges: &[(&str, &str, How)]) -> Graph {
    let stage = |&(name, workers): &(&str, usize)| Stage { name: name.to_owned(), workers, most: None };
    let edge =
        |&(from, to, how): &(&str, &str, How)| Edge { from: from.to_owned(), to: to.to_owned(), how, spill: false };
    Graph { stages: stages.iter().map(stage).collect(), edges: edges.iter().map(edge).collect() }
}

fn flaws(graph: &Graph) -> Vec<Flaw> {
    graph.expand(Limits::default()).map(|_| Vec::new()).unwrap_or_else(|flaws| flaws.0)
}

#[test]
fn shuffle_connects_everybody() {
    let graph = graph(
        &[("map", 3), ("reduce", 2), ("out", 1)],
        &[("map", "reduce", How::ByKey), ("reduce", "out", How::Gather)],
    );
    let topology = graph.expand(Limits::default()).unwrap();
    assert_eq!(topology.workers.len(), 6);
    assert_eq!(topology.worker("map.2").unwrap().targets().count(), 2);
    assert_eq!(topology.worker("reduce.1").unwrap().sources().count(), 3);
    assert_eq!(
        topology.worker("out.0").unwrap().sources().map(|from| &*from.worker).collect::<Vec<_>>(),
        ["reduce.0", "reduce.1"]
    );
}

#[test]
fn cycles_are_told_from_end_to_end() {
    let graph = graph(
        &[("a", 1), ("b", 1), ("c", 1)],
        &[("a", "b", How::Gather), ("b", "c", How::Gather), ("c", "b", How::Gather)],
    );
    let [Flaw::Cycle(round)] = &flaws(&graph)[..] else { panic!("{:?}", flaws(&graph)) };
    assert_eq!(round, &["b", "c", "b"]);
    assert!(flaws(&graph)[0].to_string().contains("b -> c -> b"));
}

#[test]
fn itself_is_a_cycle() {
    assert_eq!(flaws(&graph(&[("a", 1)], &[("a", "a", How::Gather)])), [Flaw::Cycle(vec!["a".into(), "a".into()])]);
}

#[test]
fn all_flaws_are_told_at_once() {
    let graph = graph(
        &[("a", 2), ("a", 1), ("b", 3), ("c", 0), ("../x", 1)],
        &[("a", "b", How::OneToOne), ("a", "nobody", How::Spread), ("a", "b", How::Gather)],
    );
    let all = flaws(&graph);
    let has = |flaw: &Flaw| assert!(all.contains(flaw), "{flaw} is not in {all:?}");
    has(&Flaw::Doubled("a".into()));
    has(&Flaw::Name("../x".into()));
    has(&Flaw::NoWorkers("c".into()));
    has(&Flaw::Dangling { worker: "a".into(), other: "nobody".into() });
    has(&Flaw::Unequal { from: "a".into(), to: "b".into(), left: 2, right: 3 });
    has(&Flaw::Gather { to: "b".into(), workers: 3 });
    has(&Flaw::Twice { from: "a".into(), to: "b".into() });
}

#[test]
fn fan_in_has_a_limit() {
    let graph = graph(&[("many", 9), ("one", 1)], &[("many", "one", How::Gather)]);
    let refused = graph.expand(Limits { fan_in: 8, ..Limits::default() }).unwrap_err();
    assert_eq!(refused.0, [Flaw::FanIn { worker: "one.0".into(), has: 9, limit: 8 }]);
    let refused = graph.expand(Limits { workers: 9, ..Limits::default() }).unwrap_err();
    assert_eq!(refused.0, [Flaw::Many { has: 10, limit: 9 }]);
}

#[test]
fn pictures_name_every_stage_and_edge() {
    let graph = graph(&[("map", 3), ("reduce", 2)], &[("map", "reduce", How::ByKey)]);
    assert!(graph.dot().contains("\"map\" -> \"reduce\" [label=\"by-key\"]"));
    let svg = graph.svg();
    assert!(svg.contains(">map<") && svg.contains(">reduce<") && svg.contains(">by-key<"), "{svg}");
}

fn growing(how_in: How, how_out: How, most: usize) -> Graph {
    let mut graph =
        graph(&[("feed", 2), ("work", 2), ("out", 2)], &[("feed", "work", how_in), ("work", "out", how_out)]);
    graph.stages[1].most = Some(most);
    graph
}

#[test]
fn what_may_grow_is_there_from_the_beginning_but_spare() {
    let topology = growing(How::Spread, How::ByKey, 5).expand(Limits::default()).unwrap();
    let spares: Vec<&str> = topology.workers.iter().filter(|worker| worker.spare).map(|worker| &*worker.name).collect();
    assert_eq!(spares, ["work.2", "work.3", "work.4"]);
    let later = |stream: &crate::topology::Stream| stream.later;
    assert_eq!(topology.worker("feed.1").unwrap().targets().filter(|to| later(to)).count(), 3);
    assert_eq!(topology.worker("out.0").unwrap().sources().filter(|from| later(from)).count(), 3);
    assert_eq!(topology.worker("work.3").unwrap().sources().filter(|from| later(from)).count(), 0);
    let graph = growing(How::Spread, How::ByKey, 5);
    assert!(graph.dot().contains("\"work\" [label=\"work × 2–5\", style=dashed]"), "{}", graph.dot());
    assert_eq!(graph.svg().matches("stroke-dasharray").count(), 1);
}

#[test]
fn what_may_grow_counts_in_full_and_is_reached_by_spread_alone() {
    let limits = Limits { fan_in: 4, ..Limits::default() };
    let refused = growing(How::Spread, How::ByKey, 5).expand(limits).unwrap_err();
    assert_eq!(refused.0, [Flaw::FanIn { worker: "out.0".into(), has: 5, limit: 4 }]);
    for how in [How::ByKey, How::OneToOne, How::Broadcast] {
        let grows = Flaw::Grows { from: "feed".into(), to: "work".into(), how };
        assert_eq!(flaws(&growing(how, How::ByKey, 5)), [grows]);
    }
    let from = Flaw::GrowsFrom { from: "work".into(), to: "out".into() };
    assert_eq!(flaws(&growing(How::Spread, How::OneToOne, 5)), [from]);
    assert_eq!(flaws(&growing(How::Spread, How::ByKey, 1)), [Flaw::Most { stage: "work".into(), workers: 2, most: 1 }]);
    let mut alone = graph(&[("source", 1)], &[]);
    alone.stages[0].most = Some(2);
    assert_eq!(flaws(&alone), [Flaw::NobodyAsks("source".into())]);
}

/// Graphs whose edges only lead to later stages.
fn forward() -> impl Strategy<Value = Graph> {
    let stages = prop::collection::vec(1..5_usize, 2..6);
    let edges = prop::collection::btree_set((0..5_usize, 1..5_usize), 0..8);
    let hows = prop::collection::vec(0..3_usize, 8);
    let more = prop::collection::vec(0..3_usize, 6);
    (stages, edges, hows, more).prop_map(|(workers, edges, hows, more)| {
        let count = workers.len();
        let name = |at: usize| format!("s{at}");
        let stages =
            workers.iter().enumerate().map(|(at, &workers)| Stage { name: name(at), workers, most: None }).collect();
        let fits = edges.into_iter().filter(|&(from, by)| from + by < count);
        let edge = |((from, by), how): ((usize, usize), usize)| Edge {
            from: name(from),
            to: name(from + by),
            how: [How::ByKey, How::Broadcast, How::Spread][how],
            spill: how == 1,
        };
        let mut graph = Graph { stages, edges: fits.zip(hows).map(edge).collect() };
        for (stage, more) in graph.stages.iter_mut().zip(more) {
            let mut into = graph.edges.iter().filter(|edge| edge.to == stage.name).peekable();
            let may_grow = into.peek().is_some() && into.all(|edge| edge.how == How::Spread);
            stage.most = may_grow.then_some(stage.workers + more);
        }
        graph
    })
}

proptest! {
    #[test]
    fn what_only_goes_on_expands(graph in forward()) {
        let topology = graph.expand(Limits::default()).unwrap();
        let written: usize = topology.workers.iter().map(|worker| worker.targets().count()).sum();
        let read: usize = topology.workers.iter().map(|worker| worker.sources().count()).sum();
        prop_assert_eq!(written, read);
        prop_assert_eq!(topology.workers.len(), graph.stages.iter().map(Stage::most).sum::<usize>());
        let again = serde_json::to_string(&topology).unwrap();
        prop_assert_eq!(crate::topology::Topology::from_json(&again).unwrap(), topology);
    }

    #[test]
    fn one_edge_back_is_a_cycle(graph in forward(), pick in any::<prop::sample::Index>()) {
        prop_assume!(!graph.edges.is_empty());
        let mut graph = graph;
        let turned = pick.get(&graph.edges).clone();
        graph.edges.push(Edge { from: turned.to, to: turned.from, how: How::Spread, spill: false });
        prop_assert!(flaws(&graph).iter().any(|flaw| matches!(flaw, Flaw::Cycle(_))));
    }
}
