//! Readiness as a value: ready is when nobody holds a [`Pending`].

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// What the process still waits for.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Mutex<BTreeSet<&'static str>>>);

/// One part that is not ready yet. Dropping it says that it is.
#[derive(Debug)]
pub struct Pending {
    part: &'static str,
    all: Readiness,
}

impl Readiness {
    /// Declares a part that has to get ready.
    pub fn pending(&self, part: &'static str) -> Pending {
        self.parts(|parts| parts.insert(part));
        Pending { part, all: self.clone() }
    }

    /// The parts that are not ready; empty when the process is.
    pub fn waiting_for(&self) -> Vec<&'static str> {
        self.parts(|parts| parts.iter().copied().collect())
    }

    fn parts<T>(&self, f: impl FnOnce(&mut BTreeSet<&'static str>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.all.parts(|parts| parts.remove(self.part));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_the_last_part_is() {
        let ready = Readiness::default();
        let (store, node) = (ready.pending("store"), ready.pending("node"));
        drop(store);
        assert_eq!(ready.waiting_for(), ["node"]);
        drop(node);
        assert!(ready.waiting_for().is_empty());
    }
}
