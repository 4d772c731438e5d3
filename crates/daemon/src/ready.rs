//! Readiness of a process: it is ready when no [`PendingPart`] is left.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Names of the parts that are not ready.
#[derive(Debug, Clone, Default)]
pub struct ProcessReadiness(Arc<Mutex<BTreeSet<&'static str>>>);

/// A part that is not ready. Dropping it marks it as ready.
#[derive(Debug)]
pub struct PendingPart {
    part: &'static str,
    all: ProcessReadiness,
}

impl ProcessReadiness {
    /// Adds a part that has to get ready.
    pub fn add_pending(&self, part: &'static str) -> PendingPart {
        self.with_parts(|parts| parts.insert(part));
        PendingPart {
            part,
            all: self.clone(),
        }
    }

    /// Returns the parts that are not ready; empty when the process is ready.
    pub fn waiting_for(&self) -> Vec<&'static str> {
        self.with_parts(|parts| parts.iter().copied().collect())
    }

    fn with_parts<T>(&self, f: impl FnOnce(&mut BTreeSet<&'static str>) -> T) -> T {
        // Every change is a single step, so a poisoned lock is safe to use.
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for PendingPart {
    fn drop(&mut self) {
        self.all.with_parts(|parts| parts.remove(self.part));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ready_when_its_last_part_is() {
        let ready = ProcessReadiness::default();
        let (store, node) = (ready.add_pending("store"), ready.add_pending("node"));
        drop(store);
        assert_eq!(ready.waiting_for(), ["node"]);
        drop(node);
        assert!(ready.waiting_for().is_empty());
    }
}
