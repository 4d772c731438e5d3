//! A machine in miniature: a chain that wants so much CPU, processors with other work, and a look after every period.

use nearpath_types::policy::Placement;
use proptest::prelude::*;

use super::{AWAY, CALM, Core, FULL, SETTLED, Seat};

/// What the kernel would make of it: a chain on one processor gets what is left there, but at least half (the scheduler is
/// fair); one that is spread gets all it wants. Returns what it used, and how busy the processors were.
fn period(seat: Option<usize>, want: f64, others: &[f64]) -> (f64, Vec<Core>) {
    let mut busy = others.to_vec();
    let used = match seat {
        Some(at) => {
            let used = want.min((1.0 - busy[at]).max(0.5));
            busy[at] = (busy[at] + used).min(1.0);
            used
        }
        None => {
            let share = want / busy.len() as f64;
            busy.iter_mut().for_each(|busy| *busy = (*busy + share).min(1.0));
            want
        }
    };
    let cores = busy.into_iter().enumerate().map(|(number, busy)| Core { number, busy, seats: 0 });
    (used, cores.collect())
}

/// Looks so often; returns where it was after each.
fn live(seat: &mut Seat, want: f64, others: &[f64], looks: usize) -> Vec<Option<usize>> {
    let mut places = Vec::new();
    for _ in 0..looks {
        let (used, cores) = period(seat.core(), want, others);
        places.push(seat.look(Placement::Auto, used, &cores));
    }
    places
}

fn moves(places: &[Option<usize>]) -> usize {
    places.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

fn idle(count: usize) -> Vec<Core> {
    (0..count).map(|number| Core { number, busy: 0.0, seats: 0 }).collect()
}

#[test]
fn a_small_chain_gets_a_processor_and_keeps_it() {
    let places = live(&mut Seat::default(), 0.3, &[0.1, 0.2], 1_000);
    assert!(places[..CALM as usize - 1].iter().all(Option::is_none));
    assert!(places[CALM as usize..].iter().all(|place| *place == Some(0)), "the one with more room, once and for all");
}

#[test]
fn a_chain_that_grows_leaves_at_the_first_look() {
    let mut seat = Seat::default();
    live(&mut seat, 0.1, &[0.0, 0.0], 10);
    assert!(seat.core().is_some());
    assert_eq!(live(&mut seat, 1.5, &[0.0, 0.0], 500), vec![None; 500], "while it is large");
    assert!(live(&mut seat, 0.1, &[0.0, 0.0], 500).last().unwrap().is_some(), "and comes back when it is small again");
}

#[test]
fn neighbours_that_burn_drive_it_away() {
    let mut seat = Seat::default();
    live(&mut seat, 0.2, &[0.0, 0.0], 10);
    let here = seat.core().unwrap();
    let mut others = [0.95, 0.95];
    assert_eq!(live(&mut seat, 0.2, &others, 100), vec![None; 100], "a batch would wait behind them");
    others[1 - here] = 0.1;
    let later = live(&mut seat, 0.2, &others, 600);
    assert_eq!(later.last().unwrap(), &Some(1 - here), "it sits where there is room");
}

#[test]
fn wishes_need_no_measurement() {
    let mut seat = Seat::default();
    let crowded = [Core { number: 2, busy: 1.0, seats: 3 }, Core { number: 5, busy: 1.0, seats: 1 }];
    assert_eq!(seat.obey(Placement::Auto, &crowded), None);
    assert_eq!(seat.obey(Placement::Core, &crowded), Some(5));
    assert_eq!(seat.look(Placement::Core, 7.0, &crowded), Some(5), "it was asked for");
    assert_eq!(seat.obey(Placement::Core, &crowded[..1]), None, "the only processor needs no choice");
    assert_eq!(seat.obey(Placement::Core, &idle(3)), Some(0), "5 is no more");
    assert_eq!(seat.obey(Placement::Spread, &idle(3)), None);
}

fn wish() -> impl Strategy<Value = Placement> {
    prop_oneof![1 => Just(Placement::Spread), 1 => Just(Placement::Core), 8 => Just(Placement::Auto)]
}

proptest! {
    #[test]
    fn it_sits_on_a_processor_that_is_there_and_never_when_it_is_large(
        looks in prop::collection::vec((wish(), 0.0f64..4.0, prop::collection::vec(0.0f64..=1.0, 0..5)), 0..200),
    ) {
        let mut seat = Seat::default();
        for (wish, used, busy) in looks {
            let cores: Vec<_> =
                busy.into_iter().enumerate().map(|(number, busy)| Core { number, busy, seats: 0 }).collect();
            let place = seat.look(wish, used, &cores);
            prop_assert!(place.is_none_or(|place| place < cores.len() && cores.len() > 1));
            prop_assert!(wish != Placement::Auto || used < FULL || place.is_none());
            prop_assert_eq!(wish == Placement::Core && cores.len() > 1, wish == Placement::Core && place.is_some());
        }
    }

    /// Whatever the load does, a chain is moved seldom: each round of leaving and coming back is twice as long as the one
    /// before, unless it has sat still for long.
    #[test]
    fn it_moves_seldom(loads in prop::collection::vec((0.0f64..3.0, 0.0f64..=1.0, 0.0f64..=1.0), 2_000)) {
        let mut seat = Seat::default();
        let mut places = Vec::new();
        for (want, a, b) in loads {
            let (used, cores) = period(seat.core(), want, &[a, b]);
            places.push(seat.look(Placement::Auto, used, &cores));
        }
        let doublings = (AWAY.1 / AWAY.0).ilog2() as usize + 1;
        prop_assert!(moves(&places) <= 2 * (doublings + places.len() / SETTLED as usize));
    }

    /// A chain that one processor is too small for spends nearly all its time spread.
    #[test]
    fn a_large_chain_is_not_locked_in(want in 0.85f64..4.0, others in prop::collection::vec(0.0f64..0.3, 2..8)) {
        let places = live(&mut Seat::default(), want, &others, 1_000);
        prop_assert!(places.iter().filter(|place| place.is_some()).count() <= 10);
    }
}
