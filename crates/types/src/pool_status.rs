//! Status of connections to destinations outside. JSON of `GET /system/pool`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::status_row::StatusRow;
use crate::{FunctionId, Namespace, NodeName};

/// Connections of one function, or of a chain that shares them, to one destination. Counters begin
/// with the node, and outlive instances and settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// Node with the connections; none: the only node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// `NAME.NAMESPACE` of a function, or `NAMESPACE/CHAIN`.
    pub owner: String,
    /// Its namespace.
    pub namespace: String,
    /// `HOST:PORT`.
    pub destination: String,
    /// Protocol: `tcp`, `http`, `postgres`, `mysql`, `redis`.
    pub protocol: String,
    /// Login and TLS of the node; empty: the function brings its own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub identity: String,
    /// Open connections up to which it may open one more: the node's share, if several nodes share the limit.
    pub max: u32,
    /// Declared limit over all nodes; none: this node has all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared_max: Option<u32>,
    /// Nodes that share the limit; none: this one alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing_nodes: Option<u32>,
    /// Connections of the whole namespace to the destination.
    pub open_in_group: u32,
    /// Of them, its own.
    pub open: u32,
    /// Of its own, those without a first client yet.
    pub warm: u32,
    /// Of its own, being opened.
    pub connecting: u32,
    /// Clients that wait now.
    pub waiting: u32,
    /// Clients that got a connection that was open already.
    pub hits: u64,
    /// Clients whose connection had to be opened.
    pub misses: u64,
    /// Clients that waited for a connection below the limit.
    pub waits: u64,
    /// Clients that got no connection.
    pub refused: u64,
    /// Connections that the destination refused.
    pub failed: u64,
    /// Warm connections found dead when they were to be handed out.
    pub stale: u64,
    /// Used connections cleaned for their next client.
    pub resets: u64,
    /// Warm sockets that replaced a function's own at connect(); they are hits, too.
    #[serde(default)]
    pub replaced_sockets: u64,
    /// Connections handed out with an initial window that their path had used before.
    #[serde(default)]
    pub initial_windows: u64,
    /// Calls of connect() without a replacement, by reason: they went through the egress proxy.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pass_through: BTreeMap<String, u64>,
    /// Requests answered from the cache (`cache`).
    #[serde(default)]
    pub cache_hits: u64,
    /// Writes, or connections of an unknown protocol, accepted before the destination had them
    /// (`writes=async`).
    #[serde(default)]
    pub early_writes: u64,
    /// Of those, the ones that were not delivered.
    #[serde(default)]
    pub failed_writes: u64,
    /// Reads that were issued when a call arrived (`prefetch`), and used.
    #[serde(default)]
    pub prefetch_used: u64,
    /// Such reads that were not used in time.
    #[serde(default)]
    pub prefetch_unused: u64,
    /// Bytes to the destination. Sockets that replaced a function's own are in neither number.
    pub sent_bytes: u64,
    /// Bytes from it.
    pub received_bytes: u64,
    /// Clients that had to keep a connection to their end, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pins: BTreeMap<String, u64>,
    /// Age of the oldest warm connection in seconds; none: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_seconds: Option<f64>,
}

impl PoolStatus {
    /// Adds the counters of another epoch of the same function and destination; states are those of
    /// all epochs together.
    pub fn merge_epoch(&mut self, other: &Self) {
        // Counted by the namespace, so both epochs have seen the same connections.
        self.open_in_group = self.open_in_group.max(other.open_in_group);
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
        self.initial_windows += other.initial_windows;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.replaced_sockets += other.replaced_sockets;
        self.cache_hits += other.cache_hits;
        self.early_writes += other.early_writes;
        self.failed_writes += other.failed_writes;
        self.prefetch_used += other.prefetch_used;
        self.prefetch_unused += other.prefetch_unused;
        add_counts(&mut self.pins, &other.pins);
        add_counts(&mut self.pass_through, &other.pass_through);
        // `None` in one epoch must not hide the age of the other.
        self.oldest_seconds = [self.oldest_seconds, other.oldest_seconds]
            .into_iter()
            .flatten()
            .reduce(f64::max);
    }
}

impl StatusRow for PoolStatus {
    fn set_node(&mut self, node: &NodeName) {
        self.node = Some(node.to_string());
    }

    fn is_in_namespace(&self, namespace: &Namespace) -> bool {
        self.namespace == namespace.as_str()
    }

    fn is_about(&self, name: &FunctionId) -> bool {
        // A slash marks a chain as the owner.
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
            !text.contains("pins")
                && !text.contains("oldestSeconds")
                && text.contains("openInGroup"),
            "{text}"
        );
        assert_eq!(
            serde_json::from_str::<PoolStatus>(&text).unwrap(),
            PoolStatus::default()
        );
    }
}
