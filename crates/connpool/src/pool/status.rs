//! Status report of the pool.

use std::collections::BTreeMap;
use std::time::Instant;

use nearpath_types::egress::node_share;
use nearpath_types::pool_status::PoolStatus;

use super::declared_keys::KeyReport;
use super::driver::ConnectionPool;

impl ConnectionPool {
    /// Reports the status of each owner and destination: current figures plus counters of earlier
    /// epochs.
    pub fn report(&self, now: Instant) -> Vec<PoolStatus> {
        let mut all: Vec<PoolStatus> = Vec::new();
        for report in self.declared_keys.borrow().key_reports() {
            let mut status = self.key_status(report, now);
            // Epochs of a key follow each other in the order of the keys.
            match all.last_mut().filter(|last| is_same_key(last, &status)) {
                Some(last) => {
                    status.merge_epoch(last); // the newest epoch has the declared settings
                    *last = status;
                }
                None => all.push(status),
            }
        }
        all
    }

    fn key_status(
        &self,
        (key, id, counters, (protocol, declared_max), group): KeyReport<'_>,
        now: Instant,
    ) -> PoolStatus {
        let nodes = self.node_counts.borrow().get(group).copied().unwrap_or(1);
        let state = self.state.borrow();
        let figures = id.and_then(|id| state.key_figures(id)).unwrap_or_default();
        let oldest = id
            .and_then(|id| state.oldest_warm_since(id))
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
            node: None,
            owner: key.owner.clone(),
            namespace: key.namespace().to_owned(),
            destination: key.host_port.clone(),
            protocol: protocol.to_string(),
            identity: key.base_identity().to_owned(),
            max: node_share(declared_max, nodes),
            declared_max: (nodes > 1).then_some(declared_max),
            sharing_nodes: (nodes > 1).then_some(nodes),
            open_in_group: figures.open_in_group,
            open: figures.open,
            // Used idle connections count as warm: a client gets them without a wait.
            warm: figures.warm + self.adapters.idle_count(key) as u32,
            connecting: figures.connecting,
            waiting: figures.waiting,
            hits: figures.hits + counters.hits.get(),
            misses: figures.misses + counters.misses.get(),
            waits: figures.waits + counters.waits.get(),
            refused: figures.refused + counters.refused.get(),
            failed: figures.failed + counters.failed.get(),
            stale: figures.stale + counters.stale.get(),
            resets: counters.resets.get(),
            sent_bytes: counters.sent_bytes.get(),
            received_bytes: counters.received_bytes.get(),
            replaced_sockets: counters.handed_over.get(),
            cache_hits: counters.cache_hits.get(),
            early_writes: counters.early_writes.get(),
            failed_writes: counters.failed_writes.get(),
            prefetch_used: counters.prefetch_used.get(),
            prefetch_unused: counters.prefetch_unused.get(),
            initial_windows: counters.windows_opened.get(),
            pass_through: by_reason(&counters.pass_through.borrow()),
            pins: by_reason(&counters.pins.borrow()),
            oldest_seconds: oldest.map(|since| now.saturating_duration_since(since).as_secs_f64()),
        }
    }
}

/// Returns true if both have the same owner, destination and identity, in different epochs.
fn is_same_key(one: &PoolStatus, other: &PoolStatus) -> bool {
    let of = |status: &PoolStatus| {
        [&status.owner, &status.destination, &status.identity].map(Clone::clone)
    };
    of(one) == of(other)
}
