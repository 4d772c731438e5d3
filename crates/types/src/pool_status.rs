//! What is observed of connections to destinations outside. The JSON of `GET /system/pool`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::status_query::StatusRow;
use crate::{FunctionId, Namespace};

/// The connections of one function, or of a chain that shares them, to one destination. Counters begin with the node, and go on while instances come and go
/// and settings change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// `NAME.NAMESPACE` of a function, or `NAMESPACE/CHAIN`.
    pub owner: String,
    /// Its namespace.
    pub namespace: String,
    /// `HOST:PORT`.
    pub destination: String,
    /// What is spoken there: `tcp`, `http`, `postgres`, `mysql`, `redis`.
    pub protocol: String,
    /// As whom, and through which TLS; empty: the function speaks for itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub identity: String,
    /// Most connections there with which it may open one more.
    pub max: u32,
    /// Connections that the namespace has there, whosever they are.
    pub open_there: u32,
    /// Of them, its own.
    pub open: u32,
    /// Of its own, open for nobody yet.
    pub warm: u32,
    /// Of its own, being opened.
    pub connecting: u32,
    /// Clients that wait now.
    pub waiting: u32,
    /// Clients that got a connection that was open already.
    pub hits: u64,
    /// Clients whose connection had to be opened.
    pub misses: u64,
    /// Clients that waited for a place below the ceiling.
    pub waits: u64,
    /// Clients that got no connection.
    pub refused: u64,
    /// Connections that the destination did not take.
    pub failed: u64,
    /// Warm connections found dead when they were to be handed out.
    pub stale: u64,
    /// Used connections cleaned for their next client.
    pub resets: u64,
    /// Warm sockets that took the place of a function's own at connect(); they are hits, too.
    #[serde(default)]
    pub given: u64,
    /// Connections given that began with a window which their path had borne before.
    #[serde(default)]
    pub opened: u64,
    /// Calls of connect() for which none did, by the reason: they went by the node's way out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub passed: BTreeMap<String, u64>,
    /// Requests answered with what was kept of an earlier answer (`cache`).
    #[serde(default)]
    pub cache_hits: u64,
    /// Writes, or connections of a protocol that is not known, that were taken before the destination had them (`writes=async`).
    #[serde(default)]
    pub early_writes: u64,
    /// Of those, what did not get there.
    #[serde(default)]
    pub failed_writes: u64,
    /// Reads that were issued when a call arrived (`prefetch`), and used.
    #[serde(default)]
    pub prefetch_used: u64,
    /// Such reads that nobody asked for in time.
    #[serde(default)]
    pub prefetch_unused: u64,
    /// Bytes to the destination. Those of connections that took the place of a function's own are in neither number.
    pub sent_bytes: u64,
    /// Bytes from it.
    pub received_bytes: u64,
    /// Clients that had to keep a connection until they left, by the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pins: BTreeMap<String, u64>,
    /// For how long the oldest warm connection has been open, in seconds; none: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_seconds: Option<f64>,
}

impl PoolStatus {
    /// Adds what another epoch of the same function and destination counted; what is now is that of all epochs together.
    pub fn merge_epoch(&mut self, other: &Self) {
        self.open_there = self.open_there.max(other.open_there);
        self.open += other.open;
        self.warm += other.warm;
        self.connecting += other.connecting;
        self.waiting += other.waiting;
        self.hits += other.hits;
        self.misses += other.misses;
        self.waits += other.waits;
        self.refused += other.refused;
        self.failed += other.failed;
        self.stale += other.stale;
        self.resets += other.resets;
        self.opened += other.opened;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.given += other.given;
        self.cache_hits += other.cache_hits;
        self.early_writes += other.early_writes;
        self.failed_writes += other.failed_writes;
        self.prefetch_used += other.prefetch_used;
        self.prefetch_unused += other.prefetch_unused;
        add_counts(&mut self.pins, &other.pins);
        add_counts(&mut self.passed, &other.passed);
        self.oldest_seconds = [self.oldest_seconds, other.oldest_seconds]
            .into_iter()
            .flatten()
            .reduce(f64::max);
    }
}

impl StatusRow for PoolStatus {
    fn is_in_namespace(&self, namespace: &Namespace) -> bool {
        self.namespace == namespace.as_str()
    }

    fn is_about(&self, name: &FunctionId) -> bool {
        let chain = self.owner.split_once('/').map(|(_, chain)| chain);
        self.owner == name.to_string() || chain == Some(name.name.as_str())
    }
}

fn add_counts(sums: &mut BTreeMap<String, u64>, more: &BTreeMap<String, u64>) {
    for (why, count) in more {
        *sums.entry(why.clone()).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_add_up() {
        let pins = |count| BTreeMap::from([("LISTEN".to_owned(), count)]);
        let old = PoolStatus {
            open: 2,
            hits: 5,
            pins: pins(1),
            ..PoolStatus::default()
        };
        let mut new = PoolStatus {
            open: 1,
            max: 9,
            hits: 1,
            pins: pins(2),
            oldest_seconds: Some(1.5),
            ..PoolStatus::default()
        };
        new.merge_epoch(&old);
        assert_eq!(
            (new.open, new.max, new.hits, new.pins, new.oldest_seconds),
            (3, 9, 6, pins(3), Some(1.5))
        );
    }

    #[test]
    fn empty_fields_are_left_out_of_the_json() {
        let text = serde_json::to_string(&PoolStatus::default()).unwrap();
        assert!(
            !text.contains("pins") && !text.contains("oldestSeconds") && text.contains("openThere"),
            "{text}"
        );
        assert_eq!(
            serde_json::from_str::<PoolStatus>(&text).unwrap(),
            PoolStatus::default()
        );
    }
}
