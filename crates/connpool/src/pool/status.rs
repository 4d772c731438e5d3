//! What the keeper has to tell of its connections.

use std::collections::BTreeMap;
use std::time::Instant;

use nearpath_types::pool::PoolStatus;

use super::declared_keys::Told;
use super::driver::Keeper;

impl Keeper {
    /// How each owner stands with each destination: what its instances have now, and what was counted of those that are gone.
    pub fn report(&self, now: Instant) -> Vec<PoolStatus> {
        let mut all: Vec<PoolStatus> = Vec::new();
        for told in self.declared.borrow().told() {
            let mut one = self.status(told, now);
            match all.last_mut().filter(|last| is_of_one(last, &one)) {
                Some(last) => {
                    one.add(last); // the newest epoch says what is declared
                    *last = one;
                }
                None => all.push(one),
            }
        }
        all
    }

    fn status(&self, (key, id, ledger, (protocol, max)): Told<'_>, now: Instant) -> PoolStatus {
        let stock = self.stock.borrow();
        let stands = id.and_then(|id| stock.figures(id)).unwrap_or_default();
        let oldest = id.and_then(|id| stock.oldest(id)).into_iter().chain(self.rooms.oldest(key)).min();
        let by_reason = |counts: &BTreeMap<&'static str, u64>| {
            counts.iter().map(|(why, count)| ((*why).to_owned(), *count)).collect::<BTreeMap<_, _>>()
        };
        PoolStatus {
            owner: key.owner.clone(),
            namespace: key.namespace().to_owned(),
            destination: key.to.clone(),
            protocol: protocol.to_string(),
            identity: key.as_whom().to_owned(),
            max,
            open_there: stands.at_place,
            open: stands.open,
            warm: stands.warm + self.rooms.idle(key) as u32,
            connecting: stands.connecting,
            waiting: stands.waiting,
            hits: stands.hits + ledger.hits.get(),
            misses: stands.misses + ledger.misses.get(),
            waits: stands.waits + ledger.waits.get(),
            refused: stands.refused + ledger.refused.get(),
            failed: stands.failed + ledger.failed.get(),
            stale: stands.stale + ledger.stale.get(),
            resets: ledger.resets.get(),
            sent_bytes: ledger.sent.get(),
            received_bytes: ledger.received.get(),
            given: ledger.given.get(),
            cache_hits: ledger.cached.get(),
            early_writes: ledger.early.get(),
            failed_writes: ledger.lost.get(),
            prefetch_used: ledger.foreseen.get(),
            prefetch_unused: ledger.unforeseen.get(),
            opened: ledger.opened.get(),
            passed: by_reason(&ledger.passed.borrow()),
            pins: by_reason(&ledger.pins.borrow()),
            oldest_seconds: oldest.map(|since| now.saturating_duration_since(since).as_secs_f64()),
        }
    }
}

/// Whether both are of the same owner, destination and identity, in different epochs.
fn is_of_one(one: &PoolStatus, other: &PoolStatus) -> bool {
    let of = |status: &PoolStatus| [&status.owner, &status.destination, &status.identity].map(Clone::clone);
    of(one) == of(other)
}
