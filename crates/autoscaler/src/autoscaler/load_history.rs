//! Loads of the stable and of the panic window, and what the arrivals explain of them.

use std::ops::Range;
use std::time::Duration;

use super::arrival_basis::ArrivalBasis;
use super::limits::{LOAD_BUCKET, PANIC_BUCKETS, STABLE_BUCKETS};
use super::load_window::LoadWindow;

/// Load and arrivals of the stable window, in thousandths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LoadHistory {
    loads: LoadWindow<STABLE_BUCKETS>,
    arrivals: LoadWindow<STABLE_BUCKETS>,
    /// Load while replicas last kept up.
    basis: Option<ArrivalBasis>,
}

impl LoadHistory {
    pub(super) fn new() -> Self {
        Self {
            loads: LoadWindow::new(),
            arrivals: LoadWindow::new(),
            basis: None,
        }
    }

    /// Moves on to a time, and forgets what is older than the stable window.
    pub(super) fn advance_to(&mut self, age: Duration) {
        let bucket = u64::try_from(age.as_millis() / LOAD_BUCKET.as_millis()).unwrap_or(u64::MAX);
        self.loads.advance_to(bucket);
        self.arrivals.advance_to(bucket);
    }

    pub(super) fn add(&mut self, load: u64, arrival_rate: Option<u64>) {
        self.loads.add(load);
        if let Some(rate) = arrival_rate {
            self.arrivals.add(rate);
        }
    }

    pub(super) fn clear(&mut self) {
        self.loads.clear();
        self.arrivals.clear();
        self.basis = None;
    }

    /// Returns the average load of the stable window.
    pub(super) fn stable(&self) -> u64 {
        self.average(0..STABLE_BUCKETS)
    }

    /// Returns the average load of the panic window.
    pub(super) fn sudden(&self) -> u64 {
        self.average(0..PANIC_BUCKETS)
    }

    /// Returns the average load of the newest bucket.
    pub(super) fn newest(&self) -> u64 {
        self.average(0..1)
    }

    fn average(&self, ages: Range<usize>) -> u64 {
        self.loads.average(ages).unwrap_or(0)
    }

    /// Takes a new basis if the replicas keep up with the load.
    pub(super) fn update_basis(&mut self, keeps_up: bool) {
        if keeps_up {
            // Without the panic window: a load that has just begun is no basis.
            self.basis = self.basis_of(PANIC_BUCKETS..STABLE_BUCKETS);
        }
        // Where there was no load before, the first one has to do.
        self.basis = self.basis.or(self.basis_of(0..PANIC_BUCKETS));
    }

    fn basis_of(&self, ages: Range<usize>) -> Option<ArrivalBasis> {
        ArrivalBasis::new(
            self.loads.average(ages.clone()),
            self.arrivals.average(ages),
        )
    }

    /// Returns the load that the arrivals of the panic window explain.
    pub(super) fn explained(&self) -> u64 {
        let rate = self.arrivals.average(0..PANIC_BUCKETS);
        let load = self
            .basis
            .zip(rate)
            .map(|(basis, rate)| basis.explained_load(rate));
        load.unwrap_or(0)
    }
}
