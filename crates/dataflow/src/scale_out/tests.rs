//! Single steps. Steps in any order are in [`super::simulation`].

use std::collections::{BTreeMap, HashSet};

use super::{EdgeUpdate, ScaleOut};
use crate::graph::{GraphEdge, GraphStage, StageGraph};
use crate::topology::{Distribution, JobTopology, TopologyLimits};

/// Stages as `(name, workers, max_workers)`, each read by the next.
pub(super) fn stage_chain(stages: &[(&str, usize, usize)]) -> JobTopology {
    let stage = |&(name, workers, max_workers): &(&str, usize, usize)| GraphStage {
        name: name.to_owned(),
        workers,
        max_workers: Some(max_workers),
    };
    let edge = |pair: &[(&str, usize, usize)]| {
        let grows = pair[1].2 > pair[1].1;
        let distribution = if grows {
            Distribution::Spread
        } else {
            Distribution::ByKey
        };
        GraphEdge {
            from: pair[0].0.to_owned(),
            to: pair[1].0.to_owned(),
            distribution,
            spill: false,
            linger: None,
        }
    };
    let graph = StageGraph {
        stages: stages.iter().map(stage).collect(),
        edges: stages.windows(2).map(edge).collect(),
    };
    graph.expand(TopologyLimits::default()).unwrap()
}

fn scale_out() -> ScaleOut {
    ScaleOut::new(
        &stage_chain(&[("feed", 2, 2), ("work", 1, 4), ("out", 2, 2)]),
        &HashSet::new(),
        HashSet::new(),
    )
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn streams_open_between_checkpoints_and_block_the_next_until_all_are_open() {
    let mut scale_out = scale_out();
    assert_eq!(scale_out.request_workers("feed.0", 1, "work", 1), 1);
    assert!(
        scale_out.edge_update("out.0") == EdgeUpdate::default() && !scale_out.blocks_checkpoints()
    );
    assert!(scale_out.between_checkpoints() && scale_out.blocks_checkpoints());
    assert_eq!(scale_out.edge_update("out.0").inputs, names(&["work.1"]));
    assert_eq!(scale_out.edge_update("feed.0").outputs, names(&["work.1"]));
    assert_eq!(scale_out.edge_update("feed.1"), EdgeUpdate::default());
    for (worker, holds) in [
        ("out.0", true),
        ("feed.0", true),
        ("out.0", true),
        ("out.1", false),
    ] {
        scale_out.record_opened(worker, "work.1");
        assert_eq!(scale_out.blocks_checkpoints(), holds, "{worker}");
    }
    assert!(!scale_out.between_checkpoints());
    assert_eq!(
        scale_out.started_workers(),
        BTreeMap::from([("work.1".to_owned(), "feed.0".to_owned())])
    );
}

#[test]
fn requests_beyond_the_maximum_are_cut_and_a_repeated_request_counts_once() {
    let mut scale_out = scale_out();
    assert_eq!(scale_out.request_workers("feed.0", 1, "work", 2), 2);
    assert_eq!(scale_out.request_workers("feed.0", 1, "work", 2), 2);
    assert_eq!(scale_out.request_workers("feed.1", 1, "work", 5), 1);
    assert_eq!(scale_out.request_workers("feed.1", 2, "work", 1), 0);
    assert_eq!(scale_out.request_workers("out.0", 1, "work", 1), 0);
    assert_eq!(scale_out.request_workers("feed.0", 2, "nothing", 1), 0);
}

#[test]
fn a_spare_without_remaining_requesters_is_marked_unused() {
    let mut scale_out = scale_out();
    scale_out.request_workers("feed.0", 1, "work", 1);
    scale_out.record_finished("feed.1");
    scale_out.between_checkpoints();
    scale_out.record_finished("feed.0");
    assert!(scale_out.edge_update("out.1").unused.is_empty());
    assert!(scale_out.between_checkpoints());
    assert_eq!(
        scale_out.edge_update("out.1").unused,
        names(&["work.2", "work.3"])
    );
    assert_eq!(scale_out.edge_update("out.1").inputs, names(&["work.1"]));
}

#[test]
fn an_unused_spare_is_no_requester() {
    let mut scale_out = ScaleOut::new(
        &stage_chain(&[
            ("feed", 1, 1),
            ("left", 1, 3),
            ("right", 1, 2),
            ("out", 1, 1),
        ]),
        &HashSet::new(),
        HashSet::from(["feed.0".to_owned()]),
    );
    scale_out.between_checkpoints();
    assert_eq!(
        scale_out.edge_update("right.0").unused,
        names(&["left.1", "left.2"])
    );
    assert!(
        scale_out.edge_update("out.0").unused.is_empty(),
        "left.0 may ask"
    );
    scale_out.record_finished("left.0");
    scale_out.between_checkpoints();
    assert_eq!(scale_out.edge_update("out.0").unused, names(&["right.1"]));
}

#[test]
fn workers_granted_but_not_started_at_the_checkpoint_are_reserved_again() {
    let topology = stage_chain(&[("feed", 2, 2), ("work", 1, 4), ("out", 2, 2)]);
    let there = names(&["feed.0", "feed.1", "work.0", "work.2", "out.0", "out.1"]);
    let mut scale_out = ScaleOut::new(&topology, &there.into_iter().collect(), HashSet::new());
    scale_out.restore_reservation("feed.1", "work", 1);
    assert_eq!(scale_out.request_workers("feed.0", 1, "work", 9), 1);
    scale_out.between_checkpoints();
    let owners: Vec<_> = scale_out.started_workers().into_iter().collect();
    let owner = |spare: &str, owner: &str| (spare.to_owned(), owner.to_owned());
    assert_eq!(
        owners,
        [owner("work.1", "feed.1"), owner("work.3", "feed.0")]
    );
    assert_eq!(
        scale_out.edge_update("out.0").inputs,
        names(&["work.1", "work.2", "work.3"])
    );
}
