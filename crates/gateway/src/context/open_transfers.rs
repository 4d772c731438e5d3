//! Open transfers of a thread, and the sweep that cuts overdue ones and takes places from the
//! slowest while others wait (ADR 73).

use std::cell::RefCell;
use std::cmp::Reverse;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearpath_types::SourceNetwork;
use slab::Slab;

use crate::function::AdmissionGate;

/// A request or response that is not complete.
pub(crate) trait OpenTransfer {
    /// Cuts the transfer after its deadline, or if its caller took nothing for more than
    /// `max_idle_ticks` ticks.
    fn cut_if_overdue(&self, now: Instant, tick: u32, max_idle_ticks: u32);

    /// Returns the place that the transfer holds, if its caller is too slow to keep it while others
    /// wait.
    fn late_place(&self, now: Instant) -> Option<LatePlace>;

    /// Ends the transfer, and with it its hold on the place.
    fn lose_place(&self);
}

/// Place at a function with a limit, held by a slow caller.
pub(crate) struct LatePlace {
    pub(crate) gate: Arc<AdmissionGate>,
    /// The slow caller.
    pub(crate) source: SourceNetwork,
    /// Time by which the caller exceeds its grace.
    pub(crate) lateness: Duration,
}

/// The open transfers of a thread.
#[derive(Default)]
pub(crate) struct OpenTransfers(RefCell<Slab<Rc<dyn OpenTransfer>>>);

impl OpenTransfers {
    /// Adds a transfer; returns its key.
    pub(crate) fn add(&self, transfer: Rc<dyn OpenTransfer>) -> usize {
        self.0.borrow_mut().insert(transfer)
    }

    /// Removes a transfer.
    pub(crate) fn remove(&self, key: usize) {
        // Dropped after the borrow: a response may hold the last reference to more of them.
        let removed = self.0.borrow_mut().try_remove(key);
        drop(removed);
    }

    /// Cuts every transfer that is overdue, and the slowest ones that hold places for which others
    /// wait.
    pub(crate) fn cut_overdue(&self, now: Instant, tick: u32, max_idle_ticks: u32) {
        // Copied, because a transfer that is cut removes itself.
        let open: Vec<_> = self.0.borrow().iter().map(|(_, one)| one.clone()).collect();
        for transfer in &open {
            transfer.cut_if_overdue(now, tick, max_idle_ticks);
        }
        take_late_places(&open, now);
    }
}

/// Takes the places of the slowest callers, of each function as many as requests wait.
fn take_late_places(open: &[Rc<dyn OpenTransfer>], now: Instant) {
    let mut late: Vec<_> = open
        .iter()
        .filter_map(|transfer| Some((transfer, transfer.late_place(now)?)))
        .collect();
    late.sort_by_key(|(_, place)| Reverse(place.lateness));
    for (transfer, place) in late {
        // First: the next request is admitted when the place is free. Other threads claim, too.
        if place.gate.claim_place(place.source) {
            transfer.lose_place();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::function::GateEntry;

    /// A caller that is late by some seconds.
    struct LateCaller(Arc<AdmissionGate>, u64, Cell<bool>);

    impl OpenTransfer for LateCaller {
        fn cut_if_overdue(&self, _: Instant, _: u32, _: u32) {}
        fn late_place(&self, _: Instant) -> Option<LatePlace> {
            Some(LatePlace {
                gate: self.0.clone(),
                source: source(),
                lateness: Duration::from_secs(self.1),
            })
        }
        fn lose_place(&self) {
            self.2.set(true);
        }
    }

    fn source() -> SourceNetwork {
        SourceNetwork::of("192.0.2.1".parse().unwrap())
    }

    /// Returns the lateness of those that lose their places to the requests that wait.
    fn losing(threads: &[Vec<Rc<LateCaller>>]) -> Vec<u64> {
        for thread in threads {
            let open: Vec<Rc<dyn OpenTransfer>> =
                thread.iter().map(|one| one.clone() as _).collect();
            take_late_places(&open, Instant::now());
        }
        let all = threads.iter().flatten();
        all.filter(|one| one.2.get()).map(|one| one.1).collect()
    }

    #[test]
    fn the_slowest_lose_as_many_places_as_requests_wait_whatever_their_threads() {
        let gate = AdmissionGate::new(4, 9);
        let _permits: Vec<_> = (0..4).map(|_| gate.try_enter(source()).unwrap()).collect();
        let late = |lateness| Rc::new(LateCaller(gate.clone(), lateness, Cell::new(false)));
        let threads = [vec![late(1), late(5)], vec![late(9), late(3)]];
        assert_eq!(losing(&threads), [0u64; 0], "nobody waits");
        let waiting = [gate.enter_gate(source()), gate.enter_gate(source())];
        assert!(
            waiting
                .iter()
                .all(|one| matches!(one, GateEntry::Queued(..)))
        );
        // The control: each thread alone would take two.
        assert_eq!(losing(&threads), [1, 5]);
        assert_eq!(
            losing(&threads[1..]),
            [0u64; 0],
            "both places are on their way"
        );
        gate.void_claim(); // the place was at a withdrawn instance
        assert_eq!(losing(&threads[1..]), [9]);
        drop(waiting);
        let _next = gate.enter_gate(source());
        let again = [vec![late(2)]];
        assert_eq!(losing(&again), [2], "claims end with the last that waits");
    }
}
