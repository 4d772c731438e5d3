//! Sums over the domains of one chain: users see one chain, however its functions are deployed.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use nearpath_types::chain_status::{EdgeStatus, HolderStatus, MemoryStatus};

/// Returns one entry per edge.
pub(crate) fn sum_edges(all: impl Iterator<Item = EdgeStatus>) -> Vec<EdgeStatus> {
    merge_by_key(
        all,
        |edge| [&edge.chain, &edge.namespace, &edge.caller, &edge.callee].map(String::clone),
        add_edge,
    )
}

/// Returns one entry per chain.
pub(crate) fn sum_memory(all: impl Iterator<Item = MemoryStatus>) -> Vec<MemoryStatus> {
    merge_by_key(
        all,
        |memory| [&memory.chain, &memory.namespace].map(String::clone),
        add_memory,
    )
}

/// Merges entries with the same key at the position of the first.
fn merge_by_key<T, K: Ord>(
    all: impl Iterator<Item = T>,
    key: fn(&T) -> K,
    add: fn(&mut T, T),
) -> Vec<T> {
    let (mut positions, mut merged) = (BTreeMap::new(), Vec::new());
    for next in all {
        let position = *positions.entry(key(&next)).or_insert(merged.len());
        match merged.get_mut(position) {
            Some(earlier) => add(earlier, next),
            None => merged.push(next),
        }
    }
    merged
}

fn add_edge(sum: &mut EdgeStatus, more: EdgeStatus) {
    add(&mut sum.requests, more.requests);
    add(&mut sum.failed, more.failed);
    add(&mut sum.in_flight, more.in_flight);
    add(&mut sum.call_messages, more.call_messages);
    add(&mut sum.call_bytes, more.call_bytes);
    add(&mut sum.answer_messages, more.answer_messages);
    add(&mut sum.answer_bytes, more.answer_bytes);
    add(&mut sum.seconds, more.seconds);
    add(&mut sum.connections, more.connections);
    add(&mut sum.cold_connections, more.cold_connections);
    add(&mut sum.denied_connections, more.denied_connections);
    add(&mut sum.connection_bytes, more.connection_bytes);
    if sum.latency.is_empty() {
        sum.latency = more.latency;
        return;
    }
    sum.latency
        .iter_mut()
        .zip(more.latency)
        .for_each(|(sum, more)| add(&mut sum.count, more.count));
}

fn add_memory(sum: &mut MemoryStatus, more: MemoryStatus) {
    add(&mut sum.size_bytes, more.size_bytes);
    add(&mut sum.used_bytes, more.used_bytes);
    add(&mut sum.dead_bytes, more.dead_bytes);
    // A size, not an amount: adding sizes would mean nothing.
    sum.page_bytes = sum.page_bytes.max(more.page_bytes);
    sum.huge_pages_unavailable |= more.huge_pages_unavailable;
    let holders = std::mem::take(&mut sum.holders)
        .into_iter()
        .chain(more.holders);
    sum.holders = merge_by_key(holders, |holder| holder.function.clone(), add_holder);
}

fn add_holder(sum: &mut HolderStatus, more: HolderStatus) {
    add(&mut sum.endpoints, more.endpoints);
    add(&mut sum.slots, more.slots);
    add(&mut sum.bytes, more.bytes);
    add(&mut sum.max_held_bytes, more.max_held_bytes);
}

fn add<T: AddAssign>(sum: &mut T, more: T) {
    *sum += more;
}

#[cfg(test)]
mod tests {
    use nearpath_types::chain_status::LatencyBucket;

    use super::*;

    fn edge_status(caller: &str, requests: u64) -> EdgeStatus {
        let latency = vec![
            LatencyBucket {
                below: Some(4e-6),
                count: requests,
            },
            LatencyBucket {
                below: None,
                count: 1,
            },
        ];
        EdgeStatus {
            chain: "shop".into(),
            caller: caller.into(),
            requests,
            latency,
            ..EdgeStatus::default()
        }
    }

    #[test]
    fn an_edge_in_two_domains_is_merged() {
        let sum = sum_edges(
            [
                edge_status("gateway", 3),
                edge_status("a.x", 5),
                edge_status("gateway", 4),
            ]
            .into_iter(),
        );
        let totals: Vec<_> = sum
            .iter()
            .map(|e| (e.caller.as_str(), e.requests, e.latency[0].count))
            .collect();
        assert_eq!(totals, [("gateway", 7, 7), ("a.x", 5, 5)]);
        assert_eq!(sum[0].latency[1].count, 2);
    }

    #[test]
    fn memory_of_two_domains_is_merged() {
        let holder = |function: &str, slots| HolderStatus {
            function: function.into(),
            slots,
            ..HolderStatus::default()
        };
        let of = |holders, size_bytes| MemoryStatus {
            size_bytes,
            page_bytes: 4096,
            holders,
            ..MemoryStatus::default()
        };
        let two = [
            of(vec![holder("gateway", 1), holder("a.x", 2)], 10),
            of(vec![holder("gateway", 3)], 5),
        ];
        let sum = sum_memory(two.into_iter());
        assert_eq!(sum, [of(vec![holder("gateway", 4), holder("a.x", 2)], 15)]);
    }
}
