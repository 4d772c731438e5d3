//! Functions without a chain.

use nearpath_types::policy::ChainPlacement;

use super::{idle_cpus, load_of, shared_rounds};
use crate::placement::group_cpu::GroupCpu;
use crate::placement::limits::MAX_ROUNDS_WITHOUT_SHORT_CALLS;
use crate::placement::load::{CpuLoad, GroupLoad};

/// Load of a function without a chain: CPU time and calls.
fn lone_load(used: f64, calls: f64) -> GroupLoad {
    GroupLoad {
        is_lone_function: true,
        ..load_of(&[("alone", used, calls)])
    }
}

/// A group on the first of idle processors.
fn on_first_of(idle: &[CpuLoad]) -> GroupCpu {
    let mut group_cpu = GroupCpu::default();
    let cpu = group_cpu.apply_policy(ChainPlacement::Core, idle);
    assert_eq!(cpu, Some(0));
    group_cpu
}

/// Runs rounds of a function without a chain: its load with one processor, and with all. Returns the
/// processor after each.
fn run_lone(
    group_cpu: &mut GroupCpu,
    [shared, spread]: [&GroupLoad; 2],
    cpus: &[CpuLoad],
    rounds: u32,
) -> Vec<Option<usize>> {
    let one_round = |_| {
        let load = group_cpu.cpu().map_or(spread, |_| shared);
        group_cpu.decide_cpu(ChainPlacement::Auto, load, cpus)
    };
    (0..rounds).map(one_round).collect()
}

#[test]
fn a_function_without_a_chain_is_placed_while_its_calls_are_short() {
    let idle = idle_cpus(2);
    let mut group_cpu = GroupCpu::default();
    for load in [lone_load(0.0, 0.0), lone_load(0.3, 10.0)] {
        let places = run_lone(&mut group_cpu, [&load; 2], &idle, 100);
        assert_eq!(shared_rounds(&places), 0);
    }
    let short = [&lone_load(0.2, 10_000.0), &lone_load(0.3, 10_000.0)];
    let places = run_lone(&mut group_cpu, short, &idle, 100);
    assert_eq!(shared_rounds(&places), 100, "tried at once, and kept");
    let unused = lone_load(0.0, 0.0);
    let places = run_lone(
        &mut group_cpu,
        [&unused; 2],
        &idle,
        MAX_ROUNDS_WITHOUT_SHORT_CALLS,
    );
    assert_eq!(
        shared_rounds(&places),
        MAX_ROUNDS_WITHOUT_SHORT_CALLS as usize - 1
    );
    assert_eq!(
        shared_rounds(&run_lone(&mut group_cpu, short, &idle, 10)),
        10
    );
    let long = lone_load(0.9, 100.0);
    assert_eq!(run_lone(&mut group_cpu, [&long; 2], &idle, 1), [None]);
}

#[test]
fn a_function_without_a_chain_is_not_placed_where_its_calls_cost_as_much() {
    let load = [&lone_load(0.28, 10_000.0), &lone_load(0.3, 10_000.0)];
    let places = run_lone(&mut GroupCpu::default(), load, &idle_cpus(2), 1_000);
    assert!(shared_rounds(&places) <= 12);
}

#[test]
fn a_function_with_short_calls_and_other_work_gets_all_processors() {
    // Threads that compute beside the calls: they take what one processor has, and more of eight.
    let load = [&lone_load(1.0, 10_000.0), &lone_load(7.0, 10_000.0)];
    let mut cpus = idle_cpus(8);
    let mut group_cpu = on_first_of(&cpus);
    cpus[0].busy = 1.0;
    let places = run_lone(&mut group_cpu, load, &cpus, 1_000);
    assert!(shared_rounds(&places) <= 20);
}

#[test]
fn calls_of_a_function_alone_must_be_shorter_and_fewer_than_those_of_a_chain() {
    for (used, calls, is_placed) in [
        (0.19, 1_000.0, true),
        (0.3, 1_000.0, false),
        (1.1, 10_000.0, true),
        (1.3, 10_000.0, false),
    ] {
        let load = [&lone_load(used / 2.0, calls), &lone_load(used, calls)];
        let places = run_lone(&mut GroupCpu::default(), load, &idle_cpus(2), 100);
        assert_eq!(shared_rounds(&places) == 100, is_placed, "{used}");
    }
}

#[test]
fn a_trial_whose_load_ends_changes_nothing() {
    let idle = idle_cpus(2);
    let mut group_cpu = on_first_of(&idle);
    let full = lone_load(0.9, 60_000.0);
    while group_cpu.trial.is_none() {
        group_cpu.decide_cpu(ChainPlacement::Auto, &full, &idle);
    }
    let ended = lone_load(0.01, 10.0);
    let cpu = group_cpu.decide_cpu(ChainPlacement::Auto, &ended, &idle);
    assert_eq!(cpu, Some(0));
}

#[test]
fn a_function_alone_is_not_tried_beside_other_load() {
    let mut busy = idle_cpus(2);
    busy.iter_mut().for_each(|one| one.busy = 0.9);
    let load = [&lone_load(0.2, 10_000.0), &lone_load(0.3, 10_000.0)];
    let places = run_lone(&mut GroupCpu::default(), load, &busy, 100);
    assert_eq!(shared_rounds(&places), 0);
}

#[test]
fn a_small_function_is_tried_on_one_cpu_of_a_busy_machine() {
    // The gateway and its callers keep both processors busy.
    let busy = [0, 1].map(|cpu| CpuLoad {
        cpu,
        busy: 1.0,
        platform: 0.7,
        groups: 0,
    });
    let load = [&lone_load(0.3, 91_000.0), &lone_load(0.45, 90_000.0)];
    let places = run_lone(&mut GroupCpu::default(), load, &busy, 100);
    assert_eq!(shared_rounds(&places), 100);
}
