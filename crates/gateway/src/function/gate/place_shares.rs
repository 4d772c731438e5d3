//! Places of a function by source: while others call, none takes all of them.
//!
//! Time is an argument.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nearpath_types::SourceNetwork;

/// Time for which a source counts as active after its last request.
const ACTIVE_WINDOW: Duration = Duration::from_secs(1);
/// Part of the places that a source leaves free while others are active: a quarter.
const RESERVED_DIVISOR: u32 = 4;

/// Places that the sources hold.
#[derive(Debug, Default)]
pub(super) struct PlaceShares {
    /// No count is 0.
    held: HashMap<SourceNetwork, u32>,
    /// The two sources that asked last. Two suffice: one of them is another source than the one
    /// that asks now.
    latest: [Option<(SourceNetwork, Instant)>; 2],
}

impl PlaceShares {
    /// Notes a request of a source.
    pub(super) fn note_request(&mut self, source: SourceNetwork, now: Instant) {
        let [last, _] = self.latest;
        if last.is_some_and(|(last, _)| last != source) {
            self.latest[1] = last;
        }
        self.latest[0] = Some((source, now));
    }

    /// Returns whether a source may take one more of `capacity` places, of which `admitted` are taken.
    pub(super) fn has_room(
        &self,
        source: SourceNetwork,
        admitted: u32,
        capacity: u32,
        now: Instant,
    ) -> bool {
        let reserved = match self.is_other_active(source, now) {
            true => capacity / RESERVED_DIVISOR,
            false => 0,
        };
        // Places at withdrawn instances count for their sources until their holders end.
        let held = self.held_by(source).min(admitted);
        admitted < capacity && held < capacity - reserved
    }

    /// Returns the number of places that a source holds.
    pub(super) fn held_by(&self, source: SourceNetwork) -> u32 {
        self.held.get(&source).copied().unwrap_or(0)
    }

    /// Counts a place that a source takes.
    pub(super) fn take_place(&mut self, source: SourceNetwork) {
        *self.held.entry(source).or_insert(0) += 1;
    }

    /// Counts a place that a source gives back.
    pub(super) fn give_back(&mut self, source: SourceNetwork) {
        let Some(held) = self.held.get_mut(&source) else {
            debug_assert!(false, "{source} gives back more than it took");
            return;
        };
        *held -= 1;
        if *held == 0 {
            self.held.remove(&source);
        }
    }

    fn is_other_active(&self, source: SourceNetwork, now: Instant) -> bool {
        let mut latest = self.latest.iter().flatten();
        latest.any(|(other, at)| {
            *other != source && now.saturating_duration_since(*at) < ACTIVE_WINDOW
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(host: u8) -> SourceNetwork {
        SourceNetwork::of([192, 0, 2, host].into())
    }

    /// Takes places for a source while it may; returns how many it holds then.
    fn take_all(shares: &mut PlaceShares, source: SourceNetwork, now: Instant) -> u32 {
        while shares.has_room(source, shares.held_by(source), 16, now) {
            shares.take_place(source);
        }
        shares.held_by(source)
    }

    #[test]
    fn a_source_leaves_a_quarter_to_others_while_they_call() {
        let (now, mut shares) = (Instant::now(), PlaceShares::default());
        shares.note_request(source(2), now);
        shares.note_request(source(1), now);
        shares.note_request(source(1), now);
        assert_eq!(take_all(&mut shares, source(1), now), 12);
        assert!(shares.has_room(source(2), 12, 16, now));
        let later = now + ACTIVE_WINDOW;
        assert_eq!(
            take_all(&mut shares, source(1), later),
            16,
            "no other calls"
        );
        shares.note_request(source(2), later);
        shares.give_back(source(1));
        assert!(!shares.has_room(source(1), 15, 16, later));
        let withdrawn = 10;
        assert!(shares.has_room(source(1), 15 - withdrawn, 16, later));
    }

    #[test]
    fn a_source_that_calls_alone_has_all_places() {
        let (now, mut shares) = (Instant::now(), PlaceShares::default());
        for _ in 0..3 {
            shares.note_request(source(1), now);
        }
        assert_eq!(take_all(&mut shares, source(1), now), 16);
        (0..16).for_each(|_| shares.give_back(source(1)));
        assert!(shares.held.is_empty(), "nothing is kept of a source");
    }

    #[test]
    fn few_places_are_not_divided() {
        let (now, mut shares) = (Instant::now(), PlaceShares::default());
        shares.note_request(source(2), now);
        for capacity in 1..4 {
            assert!(shares.has_room(source(1), capacity - 1, capacity, now));
            shares.take_place(source(1));
        }
        assert!(
            !shares.has_room(source(1), 0, 0, now),
            "no instance is ready"
        );
    }
}
