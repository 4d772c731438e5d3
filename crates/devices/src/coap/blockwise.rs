//! Block-wise transfers (RFC 7959): bodies kept between their blocks, within limits per client and
//! in total.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::message::BlockOption;

/// Time without a new block after which a transfer is dropped.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(60);

/// Cost of a body beside its bytes; it bounds the number of small ones.
pub(super) const TRANSFER_OVERHEAD_BYTES: usize = 1_024;

/// Bodies by client and key.
#[derive(Debug)]
pub(super) struct TransferCache<K, B> {
    entries: HashMap<(SocketAddr, K), (B, Instant)>,
    max_per_client: usize,
    max_bytes: usize,
}

/// A body with a cost in memory.
pub(super) trait MemoryCost {
    /// Returns the bytes that the body occupies.
    fn cost(&self) -> usize;
}

impl MemoryCost for Vec<u8> {
    fn cost(&self) -> usize {
        self.len() + TRANSFER_OVERHEAD_BYTES
    }
}

impl<K: Hash + Eq + Clone, B: MemoryCost> TransferCache<K, B> {
    /// Keeps `max_per_client` bodies per client and `max_bytes` bytes in total.
    pub(super) fn new(max_per_client: usize, max_bytes: usize) -> Self {
        Self {
            entries: HashMap::new(),
            max_per_client,
            max_bytes,
        }
    }

    /// Adds a body; evicts the client's own oldest ones first, then the oldest of all.
    pub(super) fn put(&mut self, from: SocketAddr, key: K, body: B, now: Instant) {
        self.entries
            .retain(|_, (_, since)| now < *since + TRANSFER_TIMEOUT);
        // Replaced, not added: a transfer must not evict others because of its own older state.
        self.entries.remove(&(from, key.clone()));
        while self
            .entries
            .keys()
            .filter(|(owner, _)| *owner == from)
            .count()
            >= self.max_per_client
            && self.evict_oldest(|owner| owner == from)
        {}
        while self.bytes() + body.cost() > self.max_bytes && self.evict_oldest(|_| true) {}
        if body.cost() <= self.max_bytes {
            self.entries.insert((from, key), (body, now));
        }
    }

    /// Returns a body that has not expired.
    pub(super) fn get(&self, from: SocketAddr, key: &K, now: Instant) -> Option<&B> {
        let cached = self.entries.get(&(from, key.clone()));
        cached
            .filter(|(_, since)| now < *since + TRANSFER_TIMEOUT)
            .map(|(body, _)| body)
    }

    /// Removes and returns a body that has not expired.
    pub(super) fn take(&mut self, from: SocketAddr, key: &K, now: Instant) -> Option<B> {
        let cached = self.entries.remove(&(from, key.clone()));
        cached
            .filter(|(_, since)| now < *since + TRANSFER_TIMEOUT)
            .map(|(body, _)| body)
    }

    fn bytes(&self) -> usize {
        self.entries.values().map(|(body, _)| body.cost()).sum()
    }

    fn evict_oldest(&mut self, matches: impl Fn(SocketAddr) -> bool) -> bool {
        let owned = self
            .entries
            .iter()
            .filter(|((owner, _), _)| matches(*owner));
        let oldest = owned
            .min_by_key(|(_, (_, since))| *since)
            .map(|(key, _)| key.clone());
        oldest.is_some_and(|key| self.entries.remove(&key).is_some())
    }
}

/// The outcome of appending a block of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BlockOutcome {
    /// More blocks follow; this is the body so far.
    Continue(Vec<u8>),
    /// The body is complete.
    Complete(Vec<u8>),
    /// An earlier block is missing.
    Missing,
    TooLarge,
    Malformed,
}

/// Appends a block to the body so far.
pub(super) fn append_block(
    cached: Option<Vec<u8>>,
    block: BlockOption,
    payload: &[u8],
    limit: usize,
) -> BlockOutcome {
    // Every block but the last is full (RFC 7959 section 2.2).
    if block.more && payload.len() != block.size() || payload.len() > block.size() {
        return BlockOutcome::Malformed;
    }
    let mut body = match (block.number, cached) {
        // Block 0 begins anew, whatever was cached (RFC 7959 section 2.5).
        (0, _) => Vec::new(),
        (_, Some(body)) if body.len() == block.offset() => body,
        _ => return BlockOutcome::Missing,
    };
    if body.len() + payload.len() > limit {
        return BlockOutcome::TooLarge;
    }
    body.extend_from_slice(payload);
    if block.more {
        BlockOutcome::Continue(body)
    } else {
        BlockOutcome::Complete(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_assemble_to_the_body(body in prop::collection::vec(any::<u8>(), 1..500), exponent in 0u8..4) {
            let size = 16 << exponent;
            let mut cached = None;
            let last = body.len().div_ceil(size) - 1;
            for (number, payload) in body.chunks(size).enumerate() {
                let block = BlockOption { number: number as u32, more: number < last, exponent };
                match append_block(cached.take(), block, payload, 500) {
                    BlockOutcome::Continue(so_far) => cached = Some(so_far),
                    BlockOutcome::Complete(whole) => prop_assert_eq!(&whole, &body),
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            prop_assert!(cached.is_none());
        }

        #[test]
        fn the_cache_is_bounded(puts in prop::collection::vec((0u16..5, 0u8..9, 0usize..300), 1..100)) {
            let now = Instant::now();
            let mut cached = TransferCache::new(3, 10_000);
            for (client, key, size) in puts {
                let from = SocketAddr::from(([192, 0, 2, 1], client));
                cached.put(from, key, vec![0; size], now);
                prop_assert!(cached.get(from, &key, now).is_some());
                prop_assert!(cached.bytes() <= 10_000 && cached.entries.keys().filter(|(owner, _)| *owner == from).count() <= 3);
            }
        }
    }

    #[test]
    fn gaps_and_large_bodies_are_refused() {
        let block = |number, more| BlockOption {
            number,
            more,
            exponent: 0,
        };
        assert_eq!(
            append_block(None, block(1, true), &[0; 16], 100),
            BlockOutcome::Missing
        );
        assert_eq!(
            append_block(Some(vec![0; 16]), block(2, true), &[0; 16], 100),
            BlockOutcome::Missing
        );
        assert_eq!(
            append_block(None, block(0, true), &[0; 15], 100),
            BlockOutcome::Malformed
        );
        assert_eq!(
            append_block(None, block(0, false), &[0; 17], 100),
            BlockOutcome::Malformed
        );
        assert_eq!(
            append_block(Some(vec![0; 16]), block(1, true), &[0; 16], 31),
            BlockOutcome::TooLarge
        );
    }
}
