//! A simulated machine: a chain with a CPU demand, processors with other load, and a decision per
//! period.

use nearpath_types::policy::ChainPlacement;
use proptest::prelude::*;

use super::{
    AWAY_ROUNDS, CALM_ROUNDS, ChainCpu, ChainLoad, CpuLoad, FunctionLoad, MAX_IDLE_ROUNDS,
    MAX_SHARED_SHARE, MAX_TRIAL_SHARE, SETTLED_ROUNDS, TRIAL_PAUSE_ROUNDS,
};

/// Simulates the kernel's scheduler for one period.
///
/// On one processor a chain gets the idle time, but at least half, because the scheduler is fair. A
/// spread chain gets its full demand. Returns the used time and the loads.
fn run_period(chain_cpu: Option<usize>, demand: f64, others: &[f64]) -> (f64, Vec<CpuLoad>) {
    let mut busy = others.to_vec();
    let used = match chain_cpu {
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
    let cores = busy.into_iter().enumerate().map(|(number, busy)| CpuLoad {
        cpu: number,
        busy,
        platform: 0.0,
        chains: 0,
    });
    (used, cores.collect())
}

/// Runs several rounds; returns the processor after each.
fn run_rounds(
    chain_cpu: &mut ChainCpu,
    demand: f64,
    others: &[f64],
    looks: usize,
) -> Vec<Option<usize>> {
    let mut places = Vec::new();
    for _ in 0..looks {
        let (used, cores) = run_period(chain_cpu.cpu(), demand, others);
        places.push(chain_cpu.decide_cpu(ChainPlacement::Auto, &uncounted(used), &cores));
    }
    places
}

/// Load of a chain whose calls are not counted.
fn uncounted(used: f64) -> ChainLoad {
    load_of(&[("one", used, 0.0)])
}

/// Load of functions, by name, CPU time and calls.
fn load_of(functions: &[(&str, f64, f64)]) -> ChainLoad {
    let one = |(name, used, calls): &(&str, f64, f64)| {
        let load = FunctionLoad {
            used: *used,
            calls: *calls,
        };
        (name.parse().unwrap(), load)
    };
    ChainLoad {
        functions: functions.iter().map(one).collect(),
        is_alone: false,
    }
}

fn count_moves(places: &[Option<usize>]) -> usize {
    places.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

fn idle_cpus(count: usize) -> Vec<CpuLoad> {
    (0..count)
        .map(|number| CpuLoad {
            cpu: number,
            busy: 0.0,
            platform: 0.0,
            chains: 0,
        })
        .collect()
}

#[test]
fn a_small_chain_gets_one_cpu_and_keeps_it() {
    let places = run_rounds(&mut ChainCpu::default(), 0.3, &[0.1, 0.2], 1_000);
    assert!(
        places[..CALM_ROUNDS as usize - 1]
            .iter()
            .all(Option::is_none)
    );
    assert!(
        places[CALM_ROUNDS as usize..]
            .iter()
            .all(|place| *place == Some(0)),
        "the less loaded one, permanently"
    );
}

#[test]
fn a_growing_chain_leaves_at_once() {
    let mut chain_cpu = ChainCpu::default();
    run_rounds(&mut chain_cpu, 0.1, &[0.0, 0.0], 10);
    assert!(chain_cpu.cpu().is_some());
    assert_eq!(
        run_rounds(&mut chain_cpu, 1.5, &[0.0, 0.0], 500),
        vec![None; 500],
        "spread while it is large"
    );
    assert!(
        run_rounds(&mut chain_cpu, 0.1, &[0.0, 0.0], 500)
            .last()
            .unwrap()
            .is_some(),
        "it returns when it is small again"
    );
}

#[test]
fn busy_neighbours_make_a_chain_leave() {
    let mut chain_cpu = ChainCpu::default();
    run_rounds(&mut chain_cpu, 0.2, &[0.0, 0.0], 10);
    let here = chain_cpu.cpu().unwrap();
    let mut others = [0.95, 0.95];
    assert_eq!(
        run_rounds(&mut chain_cpu, 0.2, &others, 100),
        vec![None; 100],
        "a batch would wait behind the others"
    );
    others[1 - here] = 0.1;
    let later = run_rounds(&mut chain_cpu, 0.2, &others, 600);
    assert_eq!(
        later.last().unwrap(),
        &Some(1 - here),
        "it moves to the idle processor"
    );
}

#[test]
fn explicit_placement_needs_no_measurement() {
    let mut chain_cpu = ChainCpu::default();
    let crowded = [
        CpuLoad {
            cpu: 2,
            busy: 1.0,
            platform: 0.0,
            chains: 3,
        },
        CpuLoad {
            cpu: 5,
            busy: 1.0,
            platform: 0.0,
            chains: 1,
        },
    ];
    assert_eq!(chain_cpu.apply_policy(ChainPlacement::Auto, &crowded), None);
    assert_eq!(
        chain_cpu.apply_policy(ChainPlacement::Core, &crowded),
        Some(5)
    );
    assert_eq!(
        chain_cpu.decide_cpu(ChainPlacement::Core, &uncounted(7.0), &crowded),
        Some(5),
        "requested by policy"
    );
    assert_eq!(
        chain_cpu.apply_policy(ChainPlacement::Core, &crowded[..1]),
        None,
        "the only processor needs no choice"
    );
    assert_eq!(
        chain_cpu.apply_policy(ChainPlacement::Core, &idle_cpus(3)),
        Some(0),
        "processor 5 is gone"
    );
    assert_eq!(
        chain_cpu.apply_policy(ChainPlacement::Spread, &idle_cpus(3)),
        None
    );
}

/// A chain of short calls: the calls that arrive, a second, and the CPU time of one.
#[derive(Debug, Clone, Copy)]
struct ShortCalls {
    offered: f64,
    shared_seconds: f64,
    spread_seconds: f64,
}

impl ShortCalls {
    /// Simulates one period on idle processors. A full one loses the calls that exceed it.
    fn run_period(self, chain_cpu: Option<usize>, cores: usize) -> (ChainLoad, Vec<CpuLoad>) {
        let (seconds, room) = match chain_cpu {
            Some(_) => (self.shared_seconds, 1.0),
            None => (self.spread_seconds, cores as f64),
        };
        let calls = self.offered.min(room / seconds);
        let used = calls * seconds;
        let busy = |number| match chain_cpu {
            Some(at) if at == number => used,
            Some(_) => 0.0,
            None => used / cores as f64,
        };
        let loads = (0..cores).map(|cpu| CpuLoad {
            cpu,
            busy: busy(cpu),
            platform: 0.0,
            chains: 0,
        });
        (load_of(&[("one", used, calls)]), loads.collect())
    }

    /// Runs several rounds; returns the processor after each.
    fn run_rounds(
        self,
        chain_cpu: &mut ChainCpu,
        cores: usize,
        rounds: usize,
    ) -> Vec<Option<usize>> {
        let one_round = |_| {
            let (load, loads) = self.run_period(chain_cpu.cpu(), cores);
            chain_cpu.decide_cpu(ChainPlacement::Auto, &load, &loads)
        };
        (0..rounds).map(one_round).collect()
    }
}

fn shared_rounds(places: &[Option<usize>]) -> usize {
    places.iter().filter(|place| place.is_some()).count()
}

#[test]
fn a_full_cpu_is_kept_while_all_would_answer_fewer_calls() {
    // Two processors spend more than twice the time of one on the wake-ups between them.
    let chain = ShortCalls {
        offered: 1e6,
        shared_seconds: 60e-6,
        spread_seconds: 130e-6,
    };
    let mut chain_cpu = ChainCpu::default();
    run_rounds(&mut chain_cpu, 0.1, &[0.0, 0.0], 10);
    assert!(shared_rounds(&chain.run_rounds(&mut chain_cpu, 2, 1_000)) >= 930);
    // The same chain under load from the start.
    let places = chain.run_rounds(&mut ChainCpu::default(), 2, 1_000);
    assert!(shared_rounds(&places) >= 930);
}

#[test]
fn a_chain_whose_calls_gain_from_all_cpus_is_spread() {
    let chain = ShortCalls {
        offered: 1e6,
        shared_seconds: 60e-6,
        spread_seconds: 80e-6,
    };
    let mut chain_cpu = ChainCpu::default();
    run_rounds(&mut chain_cpu, 0.1, &[0.0, 0.0], 10);
    assert!(shared_rounds(&chain.run_rounds(&mut chain_cpu, 2, 1_000)) <= 20);
    let places = chain.run_rounds(&mut ChainCpu::default(), 2, 1_000);
    assert!(shared_rounds(&places) <= 20);
}

#[test]
fn a_chain_of_long_calls_is_never_tried_on_one_cpu() {
    let chain = ShortCalls {
        offered: 1e6,
        shared_seconds: 2e-3,
        spread_seconds: 2e-3,
    };
    let places = chain.run_rounds(&mut ChainCpu::default(), 2, 1_000);
    assert_eq!(shared_rounds(&places), 0);
    let wide = ShortCalls {
        shared_seconds: 50e-6,
        spread_seconds: 50e-6,
        ..chain
    };
    let places = wide.run_rounds(&mut ChainCpu::default(), 8, 1_000);
    assert!(
        MAX_TRIAL_SHARE < 8.0 && shared_rounds(&places) == 0,
        "it uses eight"
    );
}

#[test]
fn other_programs_end_a_stay_and_the_platform_does_not() {
    let mut chain_cpu = ChainCpu::default();
    run_rounds(&mut chain_cpu, 0.1, &[0.0, 0.0], 10);
    let here = chain_cpu.cpu().unwrap();
    let cores = |platform| {
        [0, 1].map(|cpu| CpuLoad {
            cpu,
            busy: if cpu == here { 1.0 } else { 0.2 },
            platform,
            chains: 0,
        })
    };
    let load = load_of(&[("one", 0.5, 10_000.0)]);
    let full = load_of(&[("one", 0.85, 10_000.0)]);
    let mut other = chain_cpu.clone();
    for has_trial in [false, true] {
        chain_cpu.decide_cpu(ChainPlacement::Auto, &full, &cores(0.1));
        assert_eq!(chain_cpu.trial.is_some(), has_trial);
    }
    let mut beside_platform = other.clone();
    for _ in 0..100 {
        let cpu = beside_platform.decide_cpu(ChainPlacement::Auto, &load, &cores(0.5));
        assert_eq!(cpu, Some(here), "the platform's thread leaves first");
    }
    assert_eq!(
        other.decide_cpu(ChainPlacement::Auto, &load, &cores(0.05)),
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
    let mut chain_cpu = ChainCpu::default();
    run_rounds(&mut chain_cpu, 0.1, &[0.0; 4], 10);
    // One processor serves these calls, nearly full: each trial changes nothing.
    let calm = chain(15_000.0).run_rounds(&mut chain_cpu, 4, 500);
    assert!(shared_rounds(&calm) >= 460);
    let places = chain(50_000.0).run_rounds(&mut chain_cpu, 4, 100);
    assert!(shared_rounds(&places) <= TRIAL_PAUSE_ROUNDS as usize + 1);
}

#[test]
fn bursts_shorter_than_two_rounds_keep_a_chain_where_it_is() {
    let mut chain_cpu = ChainCpu::default();
    run_rounds(&mut chain_cpu, 0.1, &[0.0, 0.0], 10);
    for offered in [8_000.0, 50_000.0, 0.0].repeat(100) {
        let chain = ShortCalls {
            offered,
            shared_seconds: 60e-6,
            spread_seconds: 130e-6,
        };
        let places = chain.run_rounds(&mut chain_cpu, 2, 1);
        assert!(places[0].is_some());
    }
}

#[test]
fn an_idle_chain_comes_back_when_others_have_left() {
    let mut chain_cpu = ChainCpu::default();
    for _ in 0..20 {
        assert_eq!(
            run_rounds(&mut chain_cpu, 0.0, &[1.0, 1.0], 5).last(),
            Some(&None)
        );
        let places = run_rounds(&mut chain_cpu, 0.0, &[0.1, 0.1], 5);
        assert!(places[CALM_ROUNDS as usize].is_some(), "{places:?}");
    }
}

#[test]
fn many_short_calls_do_not_hide_few_long_ones() {
    let idle = idle_cpus(2);
    let mut chain_cpu = ChainCpu::default();
    run_rounds(&mut chain_cpu, 0.1, &[0.0, 0.0], 10);
    let load = load_of(&[("many", 0.2, 10_000.0), ("long", 0.8, 16.0)]);
    assert_eq!(
        chain_cpu.decide_cpu(ChainPlacement::Auto, &load, &idle),
        None
    );
    assert!(chain_cpu.trial.is_none(), "it leaves for long");
    let spread = load_of(&[("many", 0.2, 10_000.0), ("long", 1.0, 20.0)]);
    for _ in 0..100 {
        let place = chain_cpu.decide_cpu(ChainPlacement::Auto, &spread, &idle);
        assert_eq!(place, None, "never tried on one");
    }
}

#[test]
fn one_processor_is_kept_only_if_each_function_keeps_its_calls() {
    let idle = idle_cpus(2);
    let spread = load_of(&[("first", 0.5, 10_000.0), ("second", 0.5, 5_000.0)]);
    for (second, is_kept) in [(4_900.0, true), (4_000.0, false)] {
        let mut chain_cpu = ChainCpu::default();
        while chain_cpu.trial.is_none() {
            chain_cpu.decide_cpu(ChainPlacement::Auto, &spread, &idle);
        }
        let shared = load_of(&[("first", 0.3, 10_000.0), ("second", 0.3, second)]);
        let place = chain_cpu.decide_cpu(ChainPlacement::Auto, &shared, &idle);
        assert_eq!(place.is_some(), is_kept, "{second}");
    }
}

/// Load of a function without a chain: CPU time and calls.
fn load_alone(used: f64, calls: f64) -> ChainLoad {
    ChainLoad {
        is_alone: true,
        ..load_of(&[("alone", used, calls)])
    }
}

/// Runs rounds of a function without a chain: its load with one processor, and with all. Returns the
/// processor after each.
fn run_alone(
    chain_cpu: &mut ChainCpu,
    [shared, spread]: [&ChainLoad; 2],
    cores: &[CpuLoad],
    rounds: u32,
) -> Vec<Option<usize>> {
    let one_round = |_| {
        let load = chain_cpu.cpu().map_or(spread, |_| shared);
        chain_cpu.decide_cpu(ChainPlacement::Auto, load, cores)
    };
    (0..rounds).map(one_round).collect()
}

#[test]
fn a_function_without_a_chain_is_placed_while_its_calls_are_short() {
    let idle = idle_cpus(2);
    let mut chain_cpu = ChainCpu::default();
    for load in [load_alone(0.0, 0.0), load_alone(0.3, 10.0)] {
        let cpus = run_alone(&mut chain_cpu, [&load; 2], &idle, 100);
        assert_eq!(shared_rounds(&cpus), 0);
    }
    let short = [&load_alone(0.2, 10_000.0), &load_alone(0.3, 10_000.0)];
    let cpus = run_alone(&mut chain_cpu, short, &idle, 100);
    assert_eq!(shared_rounds(&cpus), 100, "tried at once, and kept");
    let unused = load_alone(0.0, 0.0);
    let cpus = run_alone(&mut chain_cpu, [&unused; 2], &idle, MAX_IDLE_ROUNDS);
    assert_eq!(shared_rounds(&cpus), MAX_IDLE_ROUNDS as usize - 1);
    assert_eq!(
        shared_rounds(&run_alone(&mut chain_cpu, short, &idle, 10)),
        10
    );
    let long = load_alone(0.9, 100.0);
    assert_eq!(run_alone(&mut chain_cpu, [&long; 2], &idle, 1), [None]);
}

#[test]
fn a_function_without_a_chain_is_not_placed_where_its_calls_cost_as_much() {
    let load = [&load_alone(0.28, 10_000.0), &load_alone(0.3, 10_000.0)];
    let cpus = run_alone(&mut ChainCpu::default(), load, &idle_cpus(2), 1_000);
    assert!(shared_rounds(&cpus) <= 12);
}

#[test]
fn a_function_with_short_calls_and_other_work_gets_all_processors() {
    // Threads that compute beside the calls: they take what one processor has, and more of eight.
    let load = [&load_alone(1.0, 10_000.0), &load_alone(7.0, 10_000.0)];
    let mut chain_cpu = ChainCpu {
        cpu: Some(0),
        ..ChainCpu::default()
    };
    let mut cores = idle_cpus(8);
    cores[0].busy = 1.0;
    let cpus = run_alone(&mut chain_cpu, load, &cores, 1_000);
    assert!(shared_rounds(&cpus) <= 20);
}

#[test]
fn calls_of_a_function_alone_must_be_shorter_and_fewer_than_those_of_a_chain() {
    for (used, calls, is_placed) in [
        (0.19, 1_000.0, true),
        (0.3, 1_000.0, false),
        (1.1, 10_000.0, true),
        (1.3, 10_000.0, false),
    ] {
        let load = [&load_alone(used / 2.0, calls), &load_alone(used, calls)];
        let cpus = run_alone(&mut ChainCpu::default(), load, &idle_cpus(2), 100);
        assert_eq!(shared_rounds(&cpus) == 100, is_placed, "{used}");
    }
}

#[test]
fn a_trial_whose_load_ends_changes_nothing() {
    let mut chain_cpu = ChainCpu {
        cpu: Some(0),
        ..ChainCpu::default()
    };
    let idle = idle_cpus(2);
    let full = load_alone(0.9, 60_000.0);
    while chain_cpu.trial.is_none() {
        chain_cpu.decide_cpu(ChainPlacement::Auto, &full, &idle);
    }
    let ended = load_alone(0.01, 10.0);
    let cpu = chain_cpu.decide_cpu(ChainPlacement::Auto, &ended, &idle);
    assert_eq!(cpu, Some(0));
}

#[test]
fn a_function_alone_is_not_tried_beside_other_load() {
    let mut busy = idle_cpus(2);
    busy.iter_mut().for_each(|core| core.busy = 0.9);
    let load = [&load_alone(0.2, 10_000.0), &load_alone(0.3, 10_000.0)];
    let cpus = run_alone(&mut ChainCpu::default(), load, &busy, 100);
    assert_eq!(shared_rounds(&cpus), 0);
}

#[test]
fn a_small_function_is_tried_on_one_cpu_of_a_busy_machine() {
    // The gateway and its callers keep both processors busy.
    let busy = [0, 1].map(|cpu| CpuLoad {
        cpu,
        busy: 1.0,
        platform: 0.7,
        chains: 0,
    });
    let load = [&load_alone(0.3, 91_000.0), &load_alone(0.45, 90_000.0)];
    let cpus = run_alone(&mut ChainCpu::default(), load, &busy, 100);
    assert_eq!(shared_rounds(&cpus), 100);
}

#[test]
fn an_explicit_placement_ends_a_trial() {
    let idle = idle_cpus(2);
    let spread = load_of(&[("first", 1.0, 10_000.0)]);
    let mut chain_cpu = ChainCpu::default();
    while chain_cpu.trial.is_none() {
        chain_cpu.decide_cpu(ChainPlacement::Auto, &spread, &idle);
    }
    chain_cpu.apply_policy(ChainPlacement::Core, &idle);
    assert!(chain_cpu.trial.is_none());
}

fn any_placement() -> impl Strategy<Value = ChainPlacement> {
    prop_oneof![1 => Just(ChainPlacement::Spread), 1 => Just(ChainPlacement::Core), 8 => Just(ChainPlacement::Auto)]
}

proptest! {
    #[test]
    fn a_chain_gets_only_existing_cpus_and_none_when_it_is_large(
        looks in prop::collection::vec((any_placement(), 0.0f64..4.0, prop::collection::vec(0.0f64..=1.0, 0..5)), 0..200),
    ) {
        let mut chain_cpu = ChainCpu::default();
        for (placement, used, busy) in looks {
            let cores: Vec<_> =
                busy.into_iter().enumerate().map(|(number, busy)| CpuLoad { cpu: number, busy, platform: 0.0, chains: 0 }).collect();
            let place = chain_cpu.decide_cpu(placement, &uncounted(used), &cores);
            prop_assert!(place.is_none_or(|place| place < cores.len() && cores.len() > 1));
            prop_assert!(placement != ChainPlacement::Auto || used < MAX_SHARED_SHARE || place.is_none());
            prop_assert_eq!(placement == ChainPlacement::Core && cores.len() > 1, placement == ChainPlacement::Core && place.is_some());
        }
    }

    /// A chain moves rarely whatever the load does: each stay away is twice as long as the one
    /// before, unless it stayed long.
    #[test]
    fn a_chain_moves_rarely(loads in prop::collection::vec((0.0f64..3.0, 0.0f64..=1.0, 0.0f64..=1.0), 2_000)) {
        let mut chain_cpu = ChainCpu::default();
        let mut places = Vec::new();
        for (demand, a, b) in loads {
            let (used, cores) = run_period(chain_cpu.cpu(), demand, &[a, b]);
            places.push(chain_cpu.decide_cpu(ChainPlacement::Auto, &uncounted(used), &cores));
        }
        let doublings = (AWAY_ROUNDS.1 / AWAY_ROUNDS.0).ilog2() as usize + 1;
        prop_assert!(count_moves(&places) <= 2 * (doublings + places.len() / SETTLED_ROUNDS as usize));
    }

    /// Whatever its calls cost and however many arrive, a chain moves rarely.
    #[test]
    fn a_chain_of_short_calls_moves_rarely(
        rounds in prop::collection::vec((0.0f64..1e5, 1e-5f64..1e-3, 0.5f64..3.0), 2_000),
        cores in 2usize..8,
    ) {
        let mut chain_cpu = ChainCpu::default();
        let mut places = Vec::new();
        for (offered, shared_seconds, factor) in rounds {
            let chain = ShortCalls { offered, shared_seconds, spread_seconds: shared_seconds * factor };
            places.extend(chain.run_rounds(&mut chain_cpu, cores, 1));
        }
        let doublings = (AWAY_ROUNDS.1 / AWAY_ROUNDS.0).ilog2() as usize + 1;
        let trials = places.len() / TRIAL_PAUSE_ROUNDS as usize + 1;
        let leaves = doublings + places.len() / SETTLED_ROUNDS as usize;
        prop_assert!(count_moves(&places) <= 2 * trials + 4 * leaves);
    }

    /// A chain that needs more than one processor is spread nearly all the time.
    #[test]
    fn a_large_chain_is_spread(demand in 0.85f64..4.0, others in prop::collection::vec(0.0f64..0.3, 2..8)) {
        let places = run_rounds(&mut ChainCpu::default(), demand, &others, 1_000);
        prop_assert!(places.iter().filter(|place| place.is_some()).count() <= 10);
    }
}
