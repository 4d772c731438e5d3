//! One step at a time; all steps in any order are in [`super::simulation`].

use std::collections::{BTreeMap, HashSet};

use super::{Growth, Word};
use crate::graph::{Edge, Graph, Stage};
use crate::topology::{How, Limits, Topology};

/// Stages as `(name, workers, most)`, each read by the next one.
pub(super) fn chain(stages: &[(&str, usize, usize)]) -> Topology {
    let stage =
        |&(name, workers, most): &(&str, usize, usize)| Stage { name: name.to_owned(), workers, most: Some(most) };
    let edge = |pair: &[(&str, usize, usize)]| {
        let grows = pair[1].2 > pair[1].1;
        let how = if grows { How::Spread } else { How::ByKey };
        Edge { from: pair[0].0.to_owned(), to: pair[1].0.to_owned(), how, spill: false }
    };
    let graph = Graph { stages: stages.iter().map(stage).collect(), edges: stages.windows(2).map(edge).collect() };
    graph.expand(Limits::default()).unwrap()
}

fn growth() -> Growth {
    Growth::new(&chain(&[("feed", 2, 2), ("work", 1, 4), ("out", 2, 2)]), &HashSet::new(), HashSet::new())
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn nothing_opens_before_a_checkpoint_is_through_and_none_begins_before_all_have_opened() {
    let mut growth = growth();
    assert_eq!(growth.ask("feed.0", 1, "work", 1), 1);
    assert!(growth.word("out.0") == Word::default() && !growth.holds());
    assert!(growth.between() && growth.holds());
    assert_eq!(growth.word("out.0").inputs, names(&["work.1"]));
    assert_eq!(growth.word("feed.0").outputs, names(&["work.1"]));
    assert_eq!(growth.word("feed.1"), Word::default());
    for (worker, holds) in [("out.0", true), ("feed.0", true), ("out.0", true), ("out.1", false)] {
        growth.opened(worker, "work.1");
        assert_eq!(growth.holds(), holds, "{worker}");
    }
    assert!(!growth.between());
    assert_eq!(growth.grown(), BTreeMap::from([("work.1".to_owned(), "feed.0".to_owned())]));
}

#[test]
fn more_than_there_are_is_not_given_and_a_call_counts_once() {
    let mut growth = growth();
    assert_eq!(growth.ask("feed.0", 1, "work", 2), 2);
    assert_eq!(growth.ask("feed.0", 1, "work", 2), 2);
    assert_eq!(growth.ask("feed.1", 1, "work", 5), 1);
    assert_eq!(growth.ask("feed.1", 2, "work", 1), 0);
    assert_eq!(growth.ask("out.0", 1, "work", 1), 0);
    assert_eq!(growth.ask("feed.0", 2, "nothing", 1), 0);
}

#[test]
fn what_nobody_can_ask_for_never_comes() {
    let mut growth = growth();
    growth.ask("feed.0", 1, "work", 1);
    growth.finished("feed.1");
    growth.between();
    growth.finished("feed.0");
    assert!(growth.word("out.1").never.is_empty());
    assert!(growth.between());
    assert_eq!(growth.word("out.1").never, names(&["work.2", "work.3"]));
    assert_eq!(growth.word("out.1").inputs, names(&["work.1"]));
}

#[test]
fn who_never_comes_asks_for_nobody() {
    let mut growth = Growth::new(
        &chain(&[("feed", 1, 1), ("left", 1, 3), ("right", 1, 2), ("out", 1, 1)]),
        &HashSet::new(),
        HashSet::from(["feed.0".to_owned()]),
    );
    growth.between();
    assert_eq!(growth.word("right.0").never, names(&["left.1", "left.2"]));
    assert!(growth.word("out.0").never.is_empty(), "left.0 may ask");
    growth.finished("left.0");
    growth.between();
    assert_eq!(growth.word("out.0").never, names(&["right.1"]));
}

#[test]
fn what_was_given_but_not_started_by_the_checkpoint_is_promised_again() {
    let topology = chain(&[("feed", 2, 2), ("work", 1, 4), ("out", 2, 2)]);
    let there = names(&["feed.0", "feed.1", "work.0", "work.2", "out.0", "out.1"]);
    let mut growth = Growth::new(&topology, &there.into_iter().collect(), HashSet::new());
    growth.owe("feed.1", "work", 1);
    assert_eq!(growth.ask("feed.0", 1, "work", 9), 1);
    growth.between();
    let owners: Vec<_> = growth.grown().into_iter().collect();
    let owner = |spare: &str, owner: &str| (spare.to_owned(), owner.to_owned());
    assert_eq!(owners, [owner("work.1", "feed.1"), owner("work.3", "feed.0")]);
    assert_eq!(growth.word("out.0").inputs, names(&["work.1", "work.2", "work.3"]));
}
