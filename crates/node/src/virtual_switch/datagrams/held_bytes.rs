//! Shares of held bytes: nothing that one caller does takes the last place of another. Pure.

use std::collections::HashMap;

use nearpath_types::FunctionId;

/// Bytes that are held for callers, within a limit.
///
/// A caller may hold as much as stays free (dynamic thresholds: Choudhury and Hahne, 1998). So a single one gets
/// half, and some is always left for another, without a fixed number of callers.
#[derive(Debug)]
pub(super) struct HeldBytes {
    limit: usize,
    total: usize,
    by_caller: HashMap<FunctionId, usize>,
}

impl HeldBytes {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            total: 0,
            by_caller: HashMap::new(),
        }
    }

    /// Returns whether a caller may hold so many bytes more.
    pub(super) fn fits(&self, caller: &FunctionId, bytes: usize) -> bool {
        let own = self.by_caller.get(caller).copied().unwrap_or(0);
        // The room before them counts: so the caller leaves as much as it holds.
        own.saturating_add(bytes) <= self.limit - self.total
    }

    /// Adds bytes that fit.
    pub(super) fn add(&mut self, caller: &FunctionId, bytes: usize) {
        self.total += bytes;
        *self.by_caller.entry(caller.clone()).or_default() += bytes;
    }

    /// Removes bytes that were added.
    pub(super) fn remove(&mut self, caller: &FunctionId, bytes: usize) {
        self.total -= bytes;
        match self.by_caller.get_mut(caller) {
            Some(own) if *own > bytes => *own -= bytes,
            // Callers come and go.
            _ => drop(self.by_caller.remove(caller)),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.total == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(number: usize) -> FunctionId {
        format!("f{number}").parse().unwrap()
    }

    /// Adds single bytes until no more fit. Returns how many.
    fn fill(held: &mut HeldBytes, caller: &FunctionId) -> usize {
        let fitting = (0..).take_while(|_| {
            let fits = held.fits(caller, 1);
            if fits {
                held.add(caller, 1);
            }
            fits
        });
        fitting.count()
    }

    #[test]
    fn a_caller_leaves_as_much_as_it_holds() {
        let mut held = HeldBytes::new(1_000);
        assert_eq!(fill(&mut held, &caller(1)), 500);
        assert_eq!(fill(&mut held, &caller(2)), 250);
        assert!(held.fits(&caller(3), 125) && !held.fits(&caller(3), 251));
        held.remove(&caller(1), 500);
        assert!(held.fits(&caller(1), 750) && !held.fits(&caller(1), 751));
        held.remove(&caller(2), 250);
        assert!(
            held.is_empty() && held.by_caller.is_empty(),
            "nothing is kept"
        );
    }
}
