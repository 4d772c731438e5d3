//! A simulated machine: a group with a CPU demand, processors with other load, and a decision per
//! period.

mod chain;
mod lone_function;
mod short_calls;

use nearpath_types::policy::ChainPlacement;

use super::group_cpu::GroupCpu;
use super::load::{CpuLoad, FunctionLoad, GroupLoad};

/// Simulates the kernel's scheduler for one period.
///
/// On one processor a chain gets the idle time, but at least half, because the scheduler is fair. A
/// spread chain gets its full demand. Returns the used time and the loads.
fn run_period(group_cpu: Option<usize>, demand: f64, others: &[f64]) -> (f64, Vec<CpuLoad>) {
    let mut busy = others.to_vec();
    let used = match group_cpu {
        Some(at) => {
            let used = demand.min((1.0 - busy[at]).max(0.5));
            busy[at] = (busy[at] + used).min(1.0);
            used
        }
        None => {
            let share = demand / busy.len() as f64;
            busy.iter_mut()
                .for_each(|busy| *busy = (*busy + share).min(1.0));
            demand
        }
    };
    let cpus = busy.into_iter().enumerate().map(|(cpu, busy)| CpuLoad {
        cpu,
        busy,
        platform: 0.0,
        groups: 0,
    });
    (used, cpus.collect())
}

/// Runs several rounds; returns the processor after each.
fn run_rounds(
    group_cpu: &mut GroupCpu,
    demand: f64,
    others: &[f64],
    rounds: usize,
) -> Vec<Option<usize>> {
    let mut places = Vec::new();
    for _ in 0..rounds {
        let (used, cpus) = run_period(group_cpu.cpu(), demand, others);
        places.push(group_cpu.decide_cpu(ChainPlacement::Auto, &uncounted(used), &cpus));
    }
    places
}

/// Load of a chain whose calls are not counted.
fn uncounted(used: f64) -> GroupLoad {
    load_of(&[("one", used, 0.0)])
}

/// Load of functions, by name, CPU time and calls.
fn load_of(functions: &[(&str, f64, f64)]) -> GroupLoad {
    let one = |(name, used, calls): &(&str, f64, f64)| {
        let load = FunctionLoad {
            used: *used,
            calls: *calls,
        };
        (name.parse().unwrap(), load)
    };
    GroupLoad {
        functions: functions.iter().map(one).collect(),
        is_lone_function: false,
    }
}

fn idle_cpus(count: usize) -> Vec<CpuLoad> {
    (0..count)
        .map(|cpu| CpuLoad {
            cpu,
            busy: 0.0,
            platform: 0.0,
            groups: 0,
        })
        .collect()
}

fn shared_rounds(places: &[Option<usize>]) -> usize {
    places.iter().filter(|place| place.is_some()).count()
}

fn count_moves(places: &[Option<usize>]) -> usize {
    places.windows(2).filter(|pair| pair[0] != pair[1]).count()
}
