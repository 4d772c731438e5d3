//! Simulation of jobs that scale out, with events in any order: frames, messages from and to the
//! coordinator, checkpoints, deaths.
//!
//! Feeds emit numbers, others forward them, the last stage keeps them. In every complete
//! checkpoint, the kept numbers are those that the feeds had emitted. At the end all numbers are
//! kept once, whichever workers died.

mod coordinator;
mod job;
mod worker;

use proptest::prelude::*;

use super::tests::stage_chain;
use crate::topology::{JobTopology, TopologyLimits};
use job::SimulatedJob;

/// Rules of the coordinator: correct, or with one rule broken as a control.
#[derive(Clone, Copy, PartialEq)]
enum CoordinatorRules {
    Correct,
    /// Checkpoints begin while streams open.
    IgnoreBlocks,
    /// Streams open during a checkpoint.
    OpenDuringCheckpoint,
    /// Spare workers are given up during a checkpoint.
    GiveUpDuringCheckpoint,
}
fn simulated_job(rules: CoordinatorRules, seed: u64) -> SimulatedJob {
    let stages: [&[_]; 3] = [
        &[("feed", 2, 2), ("next", 1, 4), ("out", 2, 2)],
        &[("feed", 2, 2), ("mid", 2, 2), ("next", 1, 3), ("out", 1, 1)],
        &[
            ("feed", 1, 1),
            ("next", 1, 3),
            ("nexter", 1, 3),
            ("out", 2, 2),
        ],
    ];
    let topology = stages
        .get(seed as usize % 4)
        .map_or_else(partly_shared_topology, |stages| stage_chain(stages));
    SimulatedJob::new(topology, rules, seed)
}

/// Handwritten topology: `out.0` reads a spare worker of `feed.0`, but nothing else from there.
fn partly_shared_topology() -> JobTopology {
    let to = |worker: &str| {
        format!(
            r#"{{"type": "tcp", "worker": "{worker}", "distribution": "spread", "group": "next"}}"#
        )
    };
    let from = |worker: &str| format!(r#"{{"type": "tcp", "worker": "{worker}"}}"#);
    let text = format!(
        r#"{{"workers": [
        {{"name": "feed.0", "inputs": [{{"type": "own"}}], "outputs": [{}, {}]}},
        {{"name": "feed.1", "inputs": [{{"type": "own"}}], "outputs": [{}]}},
        {{"name": "next.0", "stage": "next", "inputs": [{}], "outputs": [{}]}},
        {{"name": "next.1", "stage": "next", "spare": true, "inputs": [{}], "outputs": [{}]}},
        {{"name": "out.0", "inputs": [{}, {}], "outputs": []}},
        {{"name": "out.1", "inputs": [{}], "outputs": []}}]}}"#,
        to("next.0"),
        to("next.1"),
        from("out.0"),
        from("feed.0"),
        from("out.1"),
        from("feed.0"),
        from("out.0"),
        from("next.1"),
        from("feed.1"),
        from("next.0"),
    );
    let topology = JobTopology::from_json(&text).unwrap();
    topology.check_with(TopologyLimits::default()).unwrap();
    topology
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_checkpoint_is_exact_whichever_workers_die(seed in any::<u64>(), deaths in 0..4_usize) {
        let done = simulated_job(CoordinatorRules::Correct, seed).run_with_deaths(deaths);
        prop_assert!(done.is_ok(), "{:?}", done);
    }
}

/// True when one of many runs fails.
fn any_run_fails(rules: CoordinatorRules) -> bool {
    (0..600).any(|seed| simulated_job(rules, seed).run_with_deaths(1).is_err())
}

#[test]
fn simulated_jobs_start_spare_workers() {
    assert!(
        (0..50)
            .map(|seed| simulated_job(CoordinatorRules::Correct, seed)
                .run_with_deaths(0)
                .unwrap())
            .sum::<usize>()
            > 50
    );
}

#[test]
fn control_checkpoints_during_opening_are_detected() {
    assert!(any_run_fails(CoordinatorRules::IgnoreBlocks));
}

#[test]
fn control_streams_opening_during_a_checkpoint_are_detected() {
    assert!(any_run_fails(CoordinatorRules::OpenDuringCheckpoint));
}

#[test]
fn control_giving_up_spares_too_early_is_detected() {
    assert!(any_run_fails(CoordinatorRules::GiveUpDuringCheckpoint));
}
