//! Connections that the node holds for callers: a share for each, and a limit for all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearpath_types::FunctionId;

/// Connections of one calling function.
pub(super) const MAX_PER_CALLER: usize = 256;
/// Connections of all functions. Each holds two sockets and two buffers of 8 KiB.
pub(super) const MAX_CONNECTIONS: usize = 4_096;

/// Counts the connections of each caller. Clones are the same counts.
#[derive(Debug, Clone, Default)]
pub(super) struct ConnectionShares(Arc<Mutex<ShareCounts>>);

#[derive(Debug, Default)]
struct ShareCounts {
    by_caller: HashMap<FunctionId, usize>,
    total: usize,
}

/// One connection; ends when dropped.
#[derive(Debug)]
pub(super) struct ConnectionShare {
    shares: ConnectionShares,
    caller: FunctionId,
}

impl ConnectionShares {
    /// Takes a connection of a caller; `None` when it has its share, or all are taken.
    pub(super) fn take(&self, caller: &FunctionId) -> Option<ConnectionShare> {
        let mut counts = self.lock();
        let own = counts.by_caller.get(caller).copied().unwrap_or(0);
        if own >= MAX_PER_CALLER || counts.total >= MAX_CONNECTIONS {
            return None;
        }
        counts.by_caller.insert(caller.clone(), own + 1);
        counts.total += 1;
        Some(ConnectionShare {
            shares: self.clone(),
            caller: caller.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, ShareCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionShare {
    fn drop(&mut self) {
        let mut counts = self.shares.lock();
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

    fn caller(number: usize) -> FunctionId {
        format!("f{number}").parse().unwrap()
    }

    #[test]
    fn a_caller_has_its_share_and_others_theirs() {
        let shares = ConnectionShares::default();
        let mut held: Vec<_> = (0..MAX_PER_CALLER)
            .map(|_| shares.take(&caller(2)).unwrap())
            .collect();
        assert!(shares.take(&caller(2)).is_none());
        assert!(shares.take(&caller(3)).is_some());
        held.pop();
        assert!(shares.take(&caller(2)).is_some());
        drop(held);
        assert!(shares.lock().by_caller.is_empty(), "nothing is kept");
        assert_eq!(shares.lock().total, 0);
    }

    #[test]
    fn all_callers_have_one_limit() {
        let shares = ConnectionShares::default();
        let held: Vec<_> = (0..20)
            .flat_map(|number| (0..MAX_PER_CALLER).map(move |_| caller(number)))
            .map_while(|caller| shares.take(&caller))
            .collect();
        assert_eq!(held.len(), MAX_CONNECTIONS);
    }
}
