//! Connections that the node holds for callers: a share for each, and a limit for all.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Limits of connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShareLimits {
    /// Connections of one caller.
    pub(super) max_each: usize,
    /// Connections of all callers.
    pub(super) max_total: usize,
}

/// Counts the connections of each caller: a function, or a node. Clones are the same counts.
#[derive(Debug)]
pub(super) struct ConnectionShares<K> {
    counts: Arc<Mutex<ShareCounts<K>>>,
    limits: ShareLimits,
}

#[derive(Debug)]
struct ShareCounts<K> {
    by_caller: HashMap<K, usize>,
    total: usize,
}

/// One connection; ends when dropped.
#[derive(Debug)]
pub(super) struct ConnectionShare<K: Hash + Eq> {
    counts: Arc<Mutex<ShareCounts<K>>>,
    caller: K,
}

impl<K: Hash + Eq + Clone> ConnectionShares<K> {
    /// Creates counts without connections.
    pub(super) fn new(limits: ShareLimits) -> Self {
        let counts = ShareCounts {
            by_caller: HashMap::new(),
            total: 0,
        };
        Self {
            counts: Arc::new(Mutex::new(counts)),
            limits,
        }
    }

    /// Takes a connection of a caller; `None` when it has its share, or all are taken.
    pub(super) fn take(&self, caller: &K) -> Option<ConnectionShare<K>> {
        let mut counts = lock(&self.counts);
        let own = counts.by_caller.get(caller).copied().unwrap_or(0);
        if own >= self.limits.max_each || counts.total >= self.limits.max_total {
            return None;
        }
        // Counted under the lock of the check: two callers cannot both take the last one.
        counts.by_caller.insert(caller.clone(), own + 1);
        counts.total += 1;
        Some(ConnectionShare {
            counts: self.counts.clone(),
            caller: caller.clone(),
        })
    }
}

fn lock<K>(counts: &Mutex<ShareCounts<K>>) -> MutexGuard<'_, ShareCounts<K>> {
    counts.lock().unwrap_or_else(PoisonError::into_inner) // each change is complete
}

impl<K: Hash + Eq> Drop for ConnectionShare<K> {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        counts.total -= 1;
        match counts.by_caller.get_mut(&self.caller) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(counts.by_caller.remove(&self.caller)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ShareLimits = ShareLimits {
        max_each: 4,
        max_total: 50,
    };

    #[test]
    fn a_caller_has_its_share_and_others_theirs() {
        let shares = ConnectionShares::new(LIMITS);
        let mut held: Vec<_> = (0..LIMITS.max_each)
            .map(|_| shares.take(&2).unwrap())
            .collect();
        assert!(shares.take(&2).is_none());
        assert!(shares.take(&3).is_some());
        held.pop();
        assert!(shares.take(&2).is_some());
        drop(held);
        assert!(lock(&shares.counts).by_caller.is_empty(), "nothing is kept");
        assert_eq!(lock(&shares.counts).total, 0);
    }

    #[test]
    fn all_callers_have_one_limit() {
        let shares = ConnectionShares::new(LIMITS);
        let held: Vec<_> = (0..20)
            .flat_map(|number| (0..LIMITS.max_each).map(move |_| number))
            .map_while(|caller| shares.take(&caller))
            .collect();
        assert_eq!(held.len(), LIMITS.max_total);
    }
}
