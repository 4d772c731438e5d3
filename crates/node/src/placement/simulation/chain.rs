//! Chains by their CPU time and other load, without counted calls.

use nearpath_types::policy::ChainPlacement;
use proptest::prelude::*;

use super::{count_moves, idle_cpus, run_period, run_rounds, uncounted};
use crate::placement::group_cpu::GroupCpu;
use crate::placement::limits::{
    FIRST_AWAY_ROUNDS, MAX_AWAY_ROUNDS, MAX_SHARED_SHARE, SETTLED_ROUNDS, SMALL_ROUNDS,
};
use crate::placement::load::CpuLoad;

#[test]
fn a_small_chain_gets_one_cpu_and_keeps_it() {
    let places = run_rounds(&mut GroupCpu::default(), 0.3, &[0.1, 0.2], 1_000);
    assert!(
        places[..SMALL_ROUNDS as usize - 1]
            .iter()
            .all(Option::is_none)
    );
    assert!(
        places[SMALL_ROUNDS as usize..]
            .iter()
            .all(|place| *place == Some(0)),
        "the less loaded one, permanently"
    );
}

#[test]
fn a_growing_chain_leaves_at_once() {
    let mut group_cpu = GroupCpu::default();
    run_rounds(&mut group_cpu, 0.1, &[0.0, 0.0], 10);
    assert!(group_cpu.cpu().is_some());
    assert_eq!(
        run_rounds(&mut group_cpu, 1.5, &[0.0, 0.0], 500),
        vec![None; 500],
        "spread while it is large"
    );
    assert!(
        run_rounds(&mut group_cpu, 0.1, &[0.0, 0.0], 500)
            .last()
            .unwrap()
            .is_some(),
        "it returns when it is small again"
    );
}

#[test]
fn busy_neighbours_make_a_chain_leave() {
    let mut group_cpu = GroupCpu::default();
    run_rounds(&mut group_cpu, 0.2, &[0.0, 0.0], 10);
    let here = group_cpu.cpu().unwrap();
    let mut others = [0.95, 0.95];
    assert_eq!(
        run_rounds(&mut group_cpu, 0.2, &others, 100),
        vec![None; 100],
        "a batch would wait behind the others"
    );
    others[1 - here] = 0.1;
    let later = run_rounds(&mut group_cpu, 0.2, &others, 600);
    assert_eq!(
        later.last().unwrap(),
        &Some(1 - here),
        "it moves to the idle processor"
    );
}

#[test]
fn an_idle_chain_comes_back_when_others_have_left() {
    let mut group_cpu = GroupCpu::default();
    for _ in 0..20 {
        assert_eq!(
            run_rounds(&mut group_cpu, 0.0, &[1.0, 1.0], 5).last(),
            Some(&None)
        );
        let places = run_rounds(&mut group_cpu, 0.0, &[0.1, 0.1], 5);
        assert!(places[SMALL_ROUNDS as usize].is_some(), "{places:?}");
    }
}

#[test]
fn explicit_placement_needs_no_measurement() {
    let mut group_cpu = GroupCpu::default();
    let crowded = [
        CpuLoad {
            cpu: 2,
            busy: 1.0,
            platform: 0.0,
            groups: 3,
        },
        CpuLoad {
            cpu: 5,
            busy: 1.0,
            platform: 0.0,
            groups: 1,
        },
    ];
    assert_eq!(group_cpu.apply_policy(ChainPlacement::Auto, &crowded), None);
    assert_eq!(
        group_cpu.apply_policy(ChainPlacement::Core, &crowded),
        Some(5)
    );
    assert_eq!(
        group_cpu.decide_cpu(ChainPlacement::Core, &uncounted(7.0), &crowded),
        Some(5),
        "requested by policy"
    );
    assert_eq!(
        group_cpu.apply_policy(ChainPlacement::Core, &crowded[..1]),
        None,
        "the only processor needs no choice"
    );
    assert_eq!(
        group_cpu.apply_policy(ChainPlacement::Core, &idle_cpus(3)),
        Some(0),
        "processor 5 is gone"
    );
    assert_eq!(
        group_cpu.apply_policy(ChainPlacement::Spread, &idle_cpus(3)),
        None
    );
}

fn any_placement() -> impl Strategy<Value = ChainPlacement> {
    prop_oneof![1 => Just(ChainPlacement::Spread), 1 => Just(ChainPlacement::Core), 8 => Just(ChainPlacement::Auto)]
}

proptest! {
    #[test]
    fn a_chain_gets_only_existing_cpus_and_none_when_it_is_large(
        rounds in prop::collection::vec((any_placement(), 0.0f64..4.0, prop::collection::vec(0.0f64..=1.0, 0..5)), 0..200),
    ) {
        let mut group_cpu = GroupCpu::default();
        for (placement, used, busy) in rounds {
            let cpus: Vec<_> =
                busy.into_iter().enumerate().map(|(cpu, busy)| CpuLoad { cpu, busy, platform: 0.0, groups: 0 }).collect();
            let place = group_cpu.decide_cpu(placement, &uncounted(used), &cpus);
            prop_assert!(place.is_none_or(|place| place < cpus.len() && cpus.len() > 1));
            prop_assert!(placement != ChainPlacement::Auto || used < MAX_SHARED_SHARE || place.is_none());
            prop_assert_eq!(placement == ChainPlacement::Core && cpus.len() > 1, placement == ChainPlacement::Core && place.is_some());
        }
    }

    /// A chain moves rarely whatever the load does: each stay away is twice as long as the one
    /// before, unless it stayed long.
    #[test]
    fn a_chain_moves_rarely(loads in prop::collection::vec((0.0f64..3.0, 0.0f64..=1.0, 0.0f64..=1.0), 2_000)) {
        let mut group_cpu = GroupCpu::default();
        let mut places = Vec::new();
        for (demand, a, b) in loads {
            let (used, cpus) = run_period(group_cpu.cpu(), demand, &[a, b]);
            places.push(group_cpu.decide_cpu(ChainPlacement::Auto, &uncounted(used), &cpus));
        }
        let doublings = (MAX_AWAY_ROUNDS / FIRST_AWAY_ROUNDS).ilog2() as usize + 1;
        prop_assert!(count_moves(&places) <= 2 * (doublings + places.len() / SETTLED_ROUNDS as usize));
    }

    /// A chain that needs more than one processor is spread nearly all the time.
    #[test]
    fn a_large_chain_is_spread(demand in 0.85f64..4.0, others in prop::collection::vec(0.0f64..0.3, 2..8)) {
        let places = run_rounds(&mut GroupCpu::default(), demand, &others, 1_000);
        prop_assert!(places.iter().filter(|place| place.is_some()).count() <= 10);
    }
}
