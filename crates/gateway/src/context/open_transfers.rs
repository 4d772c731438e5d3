//! Open transfers of a thread, and the sweep that cuts overdue ones and takes places from the
//! slowest while others wait (ADR 73).

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;
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

fn take_late_places(open: &[Rc<dyn OpenTransfer>], now: Instant) {
    let late = open
        .iter()
        .filter_map(|transfer| Some((transfer, transfer.late_place(now)?)))
        .collect();
    let key = |(_, place): &(_, LatePlace)| (Arc::as_ptr(&place.gate), place.lateness);
    for (transfer, place) in slowest_of_each(late, key, |late| late.1.gate.load_counts().1) {
        // First: the next request is admitted when the place is free.
        place.gate.charge_source(place.source);
        transfer.lose_place();
    }
}

/// Returns the holders that lose their places: of each function the slowest, and no more than
/// requests wait. `key` returns the function and the lateness.
fn slowest_of_each<T, K: Hash + Eq>(
    mut late: Vec<T>,
    key: impl Fn(&T) -> (K, Duration),
    waiting_count: impl Fn(&T) -> usize,
) -> impl Iterator<Item = T> {
    late.sort_by_key(|holder| Reverse(key(holder).1));
    let mut left = HashMap::new();
    late.into_iter().filter(move |holder| {
        let function = key(holder).0;
        let left = left
            .entry(function)
            .or_insert_with(|| waiting_count(holder));
        let loses = *left > 0;
        *left = left.saturating_sub(1);
        loses
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_lose_as_many_places_as_requests_wait() {
        let late = vec![("a", 1), ("b", 9), ("a", 5), ("a", 3), ("c", 2)];
        let key = |holder: &(&'static str, u64)| (holder.0, Duration::from_secs(holder.1));
        let waiting = |holder: &(&str, u64)| match holder.0 {
            "a" => 2,
            "b" => 7,
            _ => 0,
        };
        let losing: Vec<_> = slowest_of_each(late, key, waiting).collect();
        assert_eq!(losing, [("b", 9), ("a", 5), ("a", 3)]);
    }
}
