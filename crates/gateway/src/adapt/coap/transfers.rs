//! Bodies that come or go in blocks (RFC 7959), kept between them, within limits for each client and for all.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::message::Block;

/// A transfer without a new block is given up.
const LIFETIME: Duration = Duration::from_secs(60);

/// What a body costs beside its bytes; it bounds how many small ones there can be.
pub(super) const OVERHEAD: usize = 1_024;

/// Bodies, by client and by what they belong to.
#[derive(Debug)]
pub(super) struct Kept<K, B> {
    all: HashMap<(SocketAddr, K), (B, Instant)>,
    each: usize,
    memory: usize,
}

/// A body that is kept.
pub(super) trait Weight {
    /// Its bytes, and what it takes to keep it.
    fn weight(&self) -> usize;
}

impl Weight for Vec<u8> {
    fn weight(&self) -> usize {
        self.len() + OVERHEAD
    }
}

impl<K: Hash + Eq + Clone, B: Weight> Kept<K, B> {
    /// `each`: bodies of one client; `memory`: bytes of all.
    pub(super) fn new(each: usize, memory: usize) -> Self {
        Self { all: HashMap::new(), each, memory }
    }

    /// Keeps a body, at the cost of the client's own oldest ones, then of anybody's.
    pub(super) fn put(&mut self, from: SocketAddr, key: K, body: B, now: Instant) {
        self.all.retain(|_, (_, since)| now < *since + LIFETIME);
        self.all.remove(&(from, key.clone()));
        while self.all.keys().filter(|(owner, _)| *owner == from).count() >= self.each
            && self.forget(|owner| owner == from)
        {}
        while self.bytes() + body.weight() > self.memory && self.forget(|_| true) {}
        if body.weight() <= self.memory {
            self.all.insert((from, key), (body, now));
        }
    }

    /// The body, if it is still there.
    pub(super) fn get(&self, from: SocketAddr, key: &K, now: Instant) -> Option<&B> {
        let kept = self.all.get(&(from, key.clone()));
        kept.filter(|(_, since)| now < *since + LIFETIME).map(|(body, _)| body)
    }

    /// The same, no longer kept.
    pub(super) fn take(&mut self, from: SocketAddr, key: &K, now: Instant) -> Option<B> {
        let kept = self.all.remove(&(from, key.clone()));
        kept.filter(|(_, since)| now < *since + LIFETIME).map(|(body, _)| body)
    }

    fn bytes(&self) -> usize {
        self.all.values().map(|(body, _)| body.weight()).sum()
    }

    fn forget(&mut self, whose: impl Fn(SocketAddr) -> bool) -> bool {
        let owned = self.all.iter().filter(|((owner, _), _)| whose(*owner));
        let oldest = owned.min_by_key(|(_, (_, since))| *since).map(|(key, _)| key.clone());
        oldest.is_some_and(|key| self.all.remove(&key).is_some())
    }
}

/// What to do about a block of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// The next one, please; this is what there is now.
    Continue(Vec<u8>),
    /// This is the whole body.
    Whole(Vec<u8>),
    /// One before it is missing.
    Missing,
    TooLarge,
    Malformed,
}

/// Adds a block to what there is of a body.
pub(super) fn add(kept: Option<Vec<u8>>, block: Block, payload: &[u8], limit: usize) -> Piece {
    if block.more && payload.len() != block.size() || payload.len() > block.size() {
        return Piece::Malformed;
    }
    let mut body = match (block.number, kept) {
        (0, _) => Vec::new(),
        (_, Some(body)) if body.len() == block.offset() => body,
        _ => return Piece::Missing,
    };
    if body.len() + payload.len() > limit {
        return Piece::TooLarge;
    }
    body.extend_from_slice(payload);
    if block.more { Piece::Continue(body) } else { Piece::Whole(body) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_make_the_body_again(body in prop::collection::vec(any::<u8>(), 1..500), exponent in 0u8..4) {
            let size = 16 << exponent;
            let mut kept = None;
            let last = body.len().div_ceil(size) - 1;
            for (number, payload) in body.chunks(size).enumerate() {
                let block = Block { number: number as u32, more: number < last, exponent };
                match add(kept.take(), block, payload, 500) {
                    Piece::Continue(so_far) => kept = Some(so_far),
                    Piece::Whole(whole) => prop_assert_eq!(&whole, &body),
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            prop_assert!(kept.is_none());
        }

        #[test]
        fn what_is_kept_is_bounded(puts in prop::collection::vec((0u16..5, 0u8..9, 0usize..300), 1..100)) {
            let now = Instant::now();
            let mut kept = Kept::new(3, 10_000);
            for (client, key, size) in puts {
                let from = SocketAddr::from(([192, 0, 2, 1], client));
                kept.put(from, key, vec![0; size], now);
                prop_assert!(kept.get(from, &key, now).is_some());
                prop_assert!(kept.bytes() <= 10_000 && kept.all.keys().filter(|(owner, _)| *owner == from).count() <= 3);
            }
        }
    }

    #[test]
    fn a_gap_and_a_giant_are_refused() {
        let block = |number, more| Block { number, more, exponent: 0 };
        assert_eq!(add(None, block(1, true), &[0; 16], 100), Piece::Missing);
        assert_eq!(add(Some(vec![0; 16]), block(2, true), &[0; 16], 100), Piece::Missing);
        assert_eq!(add(None, block(0, true), &[0; 15], 100), Piece::Malformed);
        assert_eq!(add(None, block(0, false), &[0; 17], 100), Piece::Malformed);
        assert_eq!(add(Some(vec![0; 16]), block(1, true), &[0; 16], 31), Piece::TooLarge);
    }
}
