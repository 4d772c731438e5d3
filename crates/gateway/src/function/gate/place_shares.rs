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

/// Place that counts for its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CountedPlace {
    source: SourceNetwork,
    epoch: u32,
}

impl CountedPlace {
    /// Returns the source that holds the place.
    pub(super) fn source(self) -> SourceNetwork {
        self.source
    }
}

/// Places that the sources hold.
#[derive(Debug, Default)]
pub(super) struct PlaceShares {
    /// Places since the last withdrawal; no count is 0.
    held: HashMap<SourceNetwork, u32>,
    /// Number of withdrawals, modulo 2^32.
    epoch: u32,
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

    /// Returns whether a source may take one more of `capacity` places, if one is free.
    pub(super) fn has_room(&self, source: SourceNetwork, capacity: u32, now: Instant) -> bool {
        self.has_room_for(source, 0, capacity, now)
    }

    fn has_room_for(
        &self,
        source: SourceNetwork,
        returned: u32,
        capacity: u32,
        now: Instant,
    ) -> bool {
        let reserved = match self.is_other_active(source, now) {
            true => capacity / RESERVED_DIVISOR,
            false => 0,
        };
        self.held_by(source) - returned < capacity - reserved
    }

    /// Returns whether a source may take a place if it gives one back.
    pub(super) fn gains_room(&self, source: SourceNetwork, capacity: u32, now: Instant) -> bool {
        let returned = u32::from(self.held_by(source) > 0);
        self.has_room_for(source, returned, capacity, now)
    }

    /// Returns the number of places that a source holds.
    pub(super) fn held_by(&self, source: SourceNetwork) -> u32 {
        self.held.get(&source).copied().unwrap_or(0)
    }

    /// Returns the next place of a source; [`Self::take_place`] counts it.
    pub(super) fn place_of(&self, source: SourceNetwork) -> CountedPlace {
        let epoch = self.epoch;
        CountedPlace { source, epoch }
    }

    /// Counts a place that a source takes.
    pub(super) fn take_place(&mut self, place: CountedPlace) {
        *self.held.entry(place.source).or_insert(0) += 1;
    }

    /// Counts a place that a source gives back.
    pub(super) fn give_back(&mut self, place: CountedPlace) {
        if place.epoch != self.epoch {
            return;
        }
        let Some(held) = self.held.get_mut(&place.source) else {
            debug_assert!(false, "{} gives back more than it took", place.source);
            return;
        };
        *held -= 1;
        if *held == 0 {
            self.held.remove(&place.source);
        }
    }

    /// Begins the counts anew after a withdrawal. Which sources held the withdrawn places is not
    /// known, and a source must not wait because of places that are gone.
    pub(super) fn forget_places(&mut self) {
        self.held.clear();
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Lets a second pass.
    #[cfg(test)]
    pub(super) fn forget_requests(&mut self) {
        self.latest = Default::default();
    }

    /// Returns whether no source holds a place.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
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
        while shares.has_room(source, 16, now) {
            shares.take_place(shares.place_of(source));
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
        assert!(shares.has_room(source(2), 16, now));
        let later = now + ACTIVE_WINDOW;
        assert_eq!(
            take_all(&mut shares, source(1), later),
            16,
            "no other calls"
        );
        shares.note_request(source(2), later);
        shares.give_back(shares.place_of(source(1)));
        assert!(!shares.has_room(source(1), 16, later));
        assert!(
            !shares.gains_room(source(1), 16, later),
            "it holds 15 of 12"
        );
        (0..3).for_each(|_| shares.give_back(shares.place_of(source(1))));
        assert!(shares.gains_room(source(1), 16, later));
    }

    #[test]
    fn a_source_that_calls_alone_has_all_places() {
        let (now, mut shares) = (Instant::now(), PlaceShares::default());
        for _ in 0..3 {
            shares.note_request(source(1), now);
        }
        assert_eq!(take_all(&mut shares, source(1), now), 16);
        (0..16).for_each(|_| shares.give_back(shares.place_of(source(1))));
        assert!(shares.is_empty(), "nothing is kept of a source");
    }

    #[test]
    fn few_places_are_not_divided() {
        let (now, mut shares) = (Instant::now(), PlaceShares::default());
        shares.note_request(source(2), now);
        for capacity in 1..4 {
            assert!(shares.has_room(source(1), capacity, now));
            shares.take_place(shares.place_of(source(1)));
        }
        assert!(!shares.has_room(source(1), 0, now), "no instance is ready");
    }

    #[test]
    fn withdrawn_places_count_for_nobody() {
        let (now, mut shares) = (Instant::now(), PlaceShares::default());
        shares.note_request(source(2), now);
        let old = shares.place_of(source(1));
        assert_eq!(take_all(&mut shares, source(1), now), 12);
        shares.forget_places();
        assert_eq!(take_all(&mut shares, source(1), now), 12);
        shares.give_back(old);
        assert_eq!(shares.held_by(source(1)), 12);
    }
}
