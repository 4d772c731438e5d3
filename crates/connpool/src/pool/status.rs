//! What the keeper has to tell of its connections.

use std::collections::BTreeMap;
use std::time::Instant;

use nearpath_types::pool_status::PoolStatus;

use super::declared_keys::KeyReport;
use super::driver::ConnectionPool;

impl ConnectionPool {
    /// How each owner stands with each destination: what its instances have now, and what was counted of those that are gone.
    pub fn report(&self, now: Instant) -> Vec<PoolStatus> {
        let mut all: Vec<PoolStatus> = Vec::new();
        for told in self.declared_keys.borrow().key_reports() {
            let mut one = self.key_status(told, now);
            match all.last_mut().filter(|last| is_same_key(last, &one)) {
                Some(last) => {
                    one.merge_epoch(last); // the newest epoch says what is declared
                    *last = one;
                }
                None => all.push(one),
            }
        }
        all
    }

    fn key_status(
        &self,
        (key, id, ledger, (protocol, max)): KeyReport<'_>,
        now: Instant,
    ) -> PoolStatus {
        let stock = self.state.borrow();
        let stands = id.and_then(|id| stock.key_figures(id)).unwrap_or_default();
        let oldest = id
            .and_then(|id| stock.oldest_warm_since(id))
            .into_iter()
            .chain(self.adapters.oldest_since(key))
            .min();
        let by_reason = |counts: &BTreeMap<&'static str, u64>| {
            counts
                .iter()
                .map(|(why, count)| ((*why).to_owned(), *count))
                .collect::<BTreeMap<_, _>>()
        };
        PoolStatus {
            owner: key.owner.clone(),
            namespace: key.namespace().to_owned(),
            destination: key.host_port.clone(),
            protocol: protocol.to_string(),
            identity: key.base_identity().to_owned(),
            max,
            open_there: stands.open_in_group,
            open: stands.open,
            warm: stands.warm + self.adapters.idle_count(key) as u32,
            connecting: stands.connecting,
            waiting: stands.waiting,
            hits: stands.hits + ledger.hits.get(),
            misses: stands.misses + ledger.misses.get(),
            waits: stands.waits + ledger.waits.get(),
            refused: stands.refused + ledger.refused.get(),
            failed: stands.failed + ledger.failed.get(),
            stale: stands.stale + ledger.stale.get(),
            resets: ledger.resets.get(),
            sent_bytes: ledger.sent_bytes.get(),
            received_bytes: ledger.received_bytes.get(),
            given: ledger.handed_over.get(),
            cache_hits: ledger.cache_hits.get(),
            early_writes: ledger.early_writes.get(),
            failed_writes: ledger.failed_writes.get(),
            prefetch_used: ledger.prefetch_used.get(),
            prefetch_unused: ledger.prefetch_unused.get(),
            opened: ledger.windows_opened.get(),
            passed: by_reason(&ledger.pass_through.borrow()),
            pins: by_reason(&ledger.pins.borrow()),
            oldest_seconds: oldest.map(|since| now.saturating_duration_since(since).as_secs_f64()),
        }
    }
}

/// Whether both are of the same owner, destination and identity, in different epochs.
fn is_same_key(one: &PoolStatus, other: &PoolStatus) -> bool {
    let of = |status: &PoolStatus| {
        [&status.owner, &status.destination, &status.identity].map(Clone::clone)
    };
    of(one) == of(other)
}
