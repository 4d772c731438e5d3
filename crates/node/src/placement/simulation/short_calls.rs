//! Chains of short calls: trials of all processors, and of one.

use nearpath_types::policy::ChainPlacement;
use proptest::prelude::*;

use super::{count_moves, idle_cpus, load_of, run_rounds, shared_rounds};
use crate::placement::group_cpu::GroupCpu;
use crate::placement::limits::{
    FIRST_AWAY_ROUNDS, MAX_AWAY_ROUNDS, MAX_TRIAL_SHARE, SETTLED_ROUNDS, TRIAL_PAUSE_ROUNDS,
};
use crate::placement::load::{CpuLoad, GroupLoad};

/// A chain of short calls: the calls that arrive, a second, and the CPU time of one.
#[derive(Debug, Clone, Copy)]
struct ShortCalls {
    offered: f64,
    shared_seconds: f64,
    spread_seconds: f64,
}

impl ShortCalls {
    /// Simulates one period on idle processors. A full one loses the calls that exceed it.
    fn run_period(self, group_cpu: Option<usize>, cpus: usize) -> (GroupLoad, Vec<CpuLoad>) {
        let (seconds, room) = match group_cpu {
            Some(_) => (self.shared_seconds, 1.0),
            None => (self.spread_seconds, cpus as f64),
        };
        let calls = self.offered.min(room / seconds);
        let used = calls * seconds;
        let busy = |cpu| match group_cpu {
            Some(at) if at == cpu => used,
            Some(_) => 0.0,
            None => used / cpus as f64,
        };
        let loads = (0..cpus).map(|cpu| CpuLoad {
            cpu,
            busy: busy(cpu),
            platform: 0.0,
            groups: 0,
        });
        (load_of(&[("one", used, calls)]), loads.collect())
    }

    /// Runs several rounds; returns the processor after each.
    fn run_rounds(
        self,
        group_cpu: &mut GroupCpu,
        cpus: usize,
        rounds: usize,
    ) -> Vec<Option<usize>> {
        let one_round = |_| {
            let (load, loads) = self.run_period(group_cpu.cpu(), cpus);
            group_cpu.decide_cpu(ChainPlacement::Auto, &load, &loads)
        };
        (0..rounds).map(one_round).collect()
    }
}

#[test]
fn a_full_cpu_is_kept_while_all_would_answer_fewer_calls() {
    // Two processors spend more than twice the time of one on the wake-ups between them.
    let chain = ShortCalls {
        offered: 1e6,
        shared_seconds: 60e-6,
        spread_seconds: 130e-6,
    };
    let mut group_cpu = GroupCpu::default();
    run_rounds(&mut group_cpu, 0.1, &[0.0, 0.0], 10);
    assert!(shared_rounds(&chain.run_rounds(&mut group_cpu, 2, 1_000)) >= 930);
    // The same chain under load from the start.
    let places = chain.run_rounds(&mut GroupCpu::default(), 2, 1_000);
    assert!(shared_rounds(&places) >= 930);
}

#[test]
fn a_chain_whose_calls_gain_from_all_cpus_is_spread() {
    let chain = ShortCalls {
        offered: 1e6,
        shared_seconds: 60e-6,
        spread_seconds: 80e-6,
    };
    let mut group_cpu = GroupCpu::default();
    run_rounds(&mut group_cpu, 0.1, &[0.0, 0.0], 10);
    assert!(shared_rounds(&chain.run_rounds(&mut group_cpu, 2, 1_000)) <= 20);
    let places = chain.run_rounds(&mut GroupCpu::default(), 2, 1_000);
    assert!(shared_rounds(&places) <= 20);
}

#[test]
fn a_chain_of_long_calls_is_never_tried_on_one_cpu() {
    let chain = ShortCalls {
        offered: 1e6,
        shared_seconds: 2e-3,
        spread_seconds: 2e-3,
    };
    let places = chain.run_rounds(&mut GroupCpu::default(), 2, 1_000);
    assert_eq!(shared_rounds(&places), 0);
    let wide = ShortCalls {
        shared_seconds: 50e-6,
        spread_seconds: 50e-6,
        ..chain
    };
    let places = wide.run_rounds(&mut GroupCpu::default(), 8, 1_000);
    assert!(
        MAX_TRIAL_SHARE < 8.0 && shared_rounds(&places) == 0,
        "it uses eight"
    );
}

#[test]
fn other_programs_end_a_stay_and_the_platform_does_not() {
    let mut group_cpu = GroupCpu::default();
    run_rounds(&mut group_cpu, 0.1, &[0.0, 0.0], 10);
    let here = group_cpu.cpu().unwrap();
    let cpus = |platform| {
        [0, 1].map(|cpu| CpuLoad {
            cpu,
            busy: if cpu == here { 1.0 } else { 0.2 },
            platform,
            groups: 0,
        })
    };
    let load = load_of(&[("one", 0.5, 10_000.0)]);
    let full = load_of(&[("one", 0.85, 10_000.0)]);
    let mut other = group_cpu.clone();
    for has_trial in [false, true] {
        group_cpu.decide_cpu(ChainPlacement::Auto, &full, &cpus(0.1));
        assert_eq!(group_cpu.trial.is_some(), has_trial);
    }
    let mut beside_platform = other.clone();
    for _ in 0..100 {
        let cpu = beside_platform.decide_cpu(ChainPlacement::Auto, &load, &cpus(0.5));
        assert_eq!(cpu, Some(here), "the platform's thread leaves first");
    }
    assert_eq!(
        other.decide_cpu(ChainPlacement::Auto, &load, &cpus(0.05)),
        None
    );
    assert!(other.trial.is_none() && !other.pause.is_over());
}

#[test]
fn a_chain_that_grows_after_a_trial_is_tried_again_soon() {
    let chain = |offered| ShortCalls {
        offered,
        shared_seconds: 60e-6,
        spread_seconds: 80e-6,
    };
    let mut group_cpu = GroupCpu::default();
    run_rounds(&mut group_cpu, 0.1, &[0.0; 4], 10);
    // One processor serves these calls, nearly full: each trial changes nothing.
    let calm = chain(15_000.0).run_rounds(&mut group_cpu, 4, 500);
    assert!(shared_rounds(&calm) >= 460);
    let places = chain(50_000.0).run_rounds(&mut group_cpu, 4, 100);
    assert!(shared_rounds(&places) <= TRIAL_PAUSE_ROUNDS as usize + 1);
}

#[test]
fn bursts_shorter_than_two_rounds_keep_a_chain_where_it_is() {
    let mut group_cpu = GroupCpu::default();
    run_rounds(&mut group_cpu, 0.1, &[0.0, 0.0], 10);
    for offered in [8_000.0, 50_000.0, 0.0].repeat(100) {
        let chain = ShortCalls {
            offered,
            shared_seconds: 60e-6,
            spread_seconds: 130e-6,
        };
        let places = chain.run_rounds(&mut group_cpu, 2, 1);
        assert!(places[0].is_some());
    }
}

#[test]
fn many_short_calls_do_not_hide_few_long_ones() {
    let idle = idle_cpus(2);
    let mut group_cpu = GroupCpu::default();
    run_rounds(&mut group_cpu, 0.1, &[0.0, 0.0], 10);
    let load = load_of(&[("many", 0.2, 10_000.0), ("long", 0.8, 16.0)]);
    assert_eq!(
        group_cpu.decide_cpu(ChainPlacement::Auto, &load, &idle),
        None
    );
    assert!(group_cpu.trial.is_none(), "it leaves for long");
    let spread = load_of(&[("many", 0.2, 10_000.0), ("long", 1.0, 20.0)]);
    for _ in 0..100 {
        let place = group_cpu.decide_cpu(ChainPlacement::Auto, &spread, &idle);
        assert_eq!(place, None, "never tried on one");
    }
}

#[test]
fn one_processor_is_kept_only_if_each_function_keeps_its_calls() {
    let idle = idle_cpus(2);
    let spread = load_of(&[("first", 0.5, 10_000.0), ("second", 0.5, 5_000.0)]);
    for (second, is_kept) in [(4_900.0, true), (4_000.0, false)] {
        let mut group_cpu = GroupCpu::default();
        while group_cpu.trial.is_none() {
            group_cpu.decide_cpu(ChainPlacement::Auto, &spread, &idle);
        }
        let shared = load_of(&[("first", 0.3, 10_000.0), ("second", 0.3, second)]);
        let place = group_cpu.decide_cpu(ChainPlacement::Auto, &shared, &idle);
        assert_eq!(place.is_some(), is_kept, "{second}");
    }
}

#[test]
fn an_explicit_placement_ends_a_trial() {
    let idle = idle_cpus(2);
    let spread = load_of(&[("first", 1.0, 10_000.0)]);
    let mut group_cpu = GroupCpu::default();
    while group_cpu.trial.is_none() {
        group_cpu.decide_cpu(ChainPlacement::Auto, &spread, &idle);
    }
    group_cpu.apply_policy(ChainPlacement::Core, &idle);
    assert!(group_cpu.trial.is_none());
}

proptest! {
    /// Whatever its calls cost and however many arrive, a chain moves rarely.
    #[test]
    fn a_chain_of_short_calls_moves_rarely(
        rounds in prop::collection::vec((0.0f64..1e5, 1e-5f64..1e-3, 0.5f64..3.0), 2_000),
        cpus in 2usize..8,
    ) {
        let mut group_cpu = GroupCpu::default();
        let mut places = Vec::new();
        for (offered, shared_seconds, factor) in rounds {
            let chain = ShortCalls { offered, shared_seconds, spread_seconds: shared_seconds * factor };
            places.extend(chain.run_rounds(&mut group_cpu, cpus, 1));
        }
        let doublings = (MAX_AWAY_ROUNDS / FIRST_AWAY_ROUNDS).ilog2() as usize + 1;
        let trials = places.len() / TRIAL_PAUSE_ROUNDS as usize + 1;
        let leaves = doublings + places.len() / SETTLED_ROUNDS as usize;
        prop_assert!(count_moves(&places) <= 2 * trials + 4 * leaves);
    }
}
