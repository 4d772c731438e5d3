//! A ring of descriptors with one producer and one consumer that do not trust each other.
//!
//! Both indices run freely and wrap at 2³². Each side keeps its own index in private memory. It
//! accepts the other's index only if `tail − head` stays within the capacity. Entries are two
//! relaxed atomic words: a faulty producer can at worst cause a wrong descriptor, which is checked.
//!
//! A consumer publishes its head only with [`RingConsumer::commit_head`], after it accepted the
//! leases of all popped entries. So a descriptor that has left the ring was accepted, and the node
//! can rely on that after a death.

use crate::descriptor::Descriptor;
use crate::shared::SharedRef;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes before the first entry: `tail`, `head` and the wakeup request, on cache lines of their
/// own.
pub const RING_HEADER_BYTES: usize = 192;
/// Offset of `head`.
pub const HEAD_OFFSET: usize = 64;
/// Offset of the wakeup request (`producer_waiting` in the contract).
pub const WAKEUP_REQUEST_OFFSET: usize = 128;

/// Shared words of a ring.
#[derive(Debug, Clone)]
pub struct Ring {
    tail: SharedRef<AtomicU32>,
    head: SharedRef<AtomicU32>,
    wakeup_requested: SharedRef<AtomicU32>,
    entries: SharedRef<[AtomicU64]>,
}

impl Ring {
    /// Combines the header words with `entries`: two words per descriptor, a power of two in total.
    pub fn new(header: [SharedRef<AtomicU32>; 3], entries: SharedRef<[AtomicU64]>) -> Self {
        debug_assert!(
            entries.len().is_power_of_two() && entries.len() >= 2,
            "capacity is no power of two"
        );
        let [tail, head, producer_waiting] = header;
        Self {
            tail,
            head,
            wakeup_requested: producer_waiting,
            entries,
        }
    }

    /// Creates a ring on the heap, for tests. Both indices begin at `start`.
    pub fn in_memory(capacity: usize, start: u32) -> Self {
        let word = |value| SharedRef::from_vec(vec![AtomicU32::new(value)]).map(|words| &words[0]);
        let entries = SharedRef::from_vec((0..2 * capacity).map(|_| AtomicU64::new(0)).collect());
        Self::new([word(start), word(start), word(0)], entries)
    }

    /// Returns the capacity in descriptors.
    pub fn capacity(&self) -> u32 {
        (self.entries.len() / 2) as u32
    }

    /// Returns the current `tail` and `head`, for the node and for tests.
    pub fn indices(&self) -> (u32, u32) {
        // `head` first: read second, it could be ahead of the `tail` that was read before.
        let head = self.head.load(Ordering::Acquire);
        (self.tail.load(Ordering::Acquire), head)
    }

    /// Returns true if a descriptor that `wanted` accepts lies between head and tail. A ring with
    /// impossible indices contains none.
    pub fn contains(&self, wanted: impl Fn(&Descriptor) -> bool) -> bool {
        let (tail, head) = self.indices();
        let length = tail.wrapping_sub(head);
        length <= self.capacity()
            && (0..length).any(|i| wanted(&self.read_entry(head.wrapping_add(i))))
    }

    fn read_entry(&self, index: u32) -> Descriptor {
        let at = self.entry_index(index);
        // Relaxed: the Acquire load of `tail` orders the words, and the lease word refuses a torn
        // entry.
        Descriptor::from_words([0, 1].map(|k| self.entries[at + k].load(Ordering::Relaxed)))
    }

    fn write_entry(&self, index: u32, descriptor: Descriptor) {
        let at = self.entry_index(index);
        for (k, word) in descriptor.to_words().into_iter().enumerate() {
            self.entries[at + k].store(word, Ordering::Relaxed);
        }
    }

    fn entry_index(&self, index: u32) -> usize {
        2 * (index as usize & (self.capacity() as usize - 1))
    }
}

/// The peer's index is impossible: the peer is faulty or hostile, and the ring is unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer of a ring wrote an impossible index")]
pub struct RingPoisoned;

/// Reason why a descriptor was not pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// No credit: the ring is full.
    #[error("the ring is full")]
    Full,
    /// See [`RingPoisoned`].
    #[error(transparent)]
    Poisoned(#[from] RingPoisoned),
}

/// The side that pushes.
#[derive(Debug)]
pub struct RingProducer {
    ring: Ring,
    tail: u32,
    cached_head: u32,
}

impl RingProducer {
    /// Creates the producer; `start` is 0 for a ring of the contract.
    pub fn new(ring: Ring, start: u32) -> Self {
        Self {
            ring,
            tail: start,
            cached_head: start,
        }
    }

    /// Returns the credits: descriptors that can be pushed now.
    pub fn free_entries(&mut self) -> Result<u32, RingPoisoned> {
        let used = self.used_entries()?;
        Ok(self.ring.capacity() - used)
    }

    /// Pushes and publishes a descriptor. Wake the consumer after the batch.
    pub fn push_descriptor(&mut self, descriptor: Descriptor) -> Result<(), PushError> {
        // The cached head suffices while it leaves room: that saves one cache miss per push.
        if self.tail.wrapping_sub(self.cached_head) >= self.ring.capacity()
            && self.used_entries()? >= self.ring.capacity()
        {
            return Err(PushError::Full);
        }
        self.ring.write_entry(self.tail, descriptor);
        self.tail = self.tail.wrapping_add(1);
        // Release: pairs with the consumer's Acquire load of `tail`; the entry is visible first.
        self.ring.tail.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Requests a wakeup when the consumer frees an entry. Returns true when there is room already.
    /// The consumer answers once and wakes only sleepers: announce the sleep first, and request
    /// again before each sleep.
    pub fn request_wakeup(&mut self) -> Result<bool, RingPoisoned> {
        // An exchange like the consumer's, so that one is ordered before the other
        self.ring.wakeup_requested.swap(1, Ordering::AcqRel);
        // Pairs with the fence in `flush_batch`: the consumer sees the request, or this end sees
        // the new `head`.
        fence(Ordering::SeqCst);
        Ok(self.free_entries()? > 0)
    }

    /// Iterates over descriptors that were pushed and not consumed, after the consumer's death.
    pub fn unconsumed(&mut self) -> impl Iterator<Item = Descriptor> + '_ {
        // A consumer that forged `head` makes every entry count; the lease words then decide.
        let used = self.used_entries().unwrap_or(self.ring.capacity());
        (0..used).map(move |back| self.ring.read_entry(self.tail.wrapping_sub(used - back)))
    }

    fn used_entries(&mut self) -> Result<u32, RingPoisoned> {
        // Acquire: pairs with the Release store in `commit_head`; the consumer no longer reads the
        // entries before `head`.
        let head = self.ring.head.load(Ordering::Acquire);
        let used = self.tail.wrapping_sub(head);
        if used > self.ring.capacity() {
            return Err(RingPoisoned);
        }
        self.cached_head = head;
        Ok(used)
    }
}

/// The side that pops.
#[derive(Debug)]
pub struct RingConsumer {
    ring: Ring,
    head: u32,
    cached_tail: u32,
}

impl RingConsumer {
    /// Creates the consumer; `start` is 0 for a ring of the contract.
    pub fn new(ring: Ring, start: u32) -> Self {
        Self {
            ring,
            head: start,
            cached_tail: start,
        }
    }

    /// Returns true if there is nothing to pop. A poisoned ring is not empty: popping reports it.
    pub fn is_empty(&mut self) -> bool {
        self.refresh_tail() == Ok(false)
    }

    /// Returns a copy of the next descriptor, unchecked. Its entry is free after
    /// [`RingConsumer::commit_head`].
    pub fn pop_descriptor(&mut self) -> Result<Option<Descriptor>, RingPoisoned> {
        if !self.refresh_tail()? {
            return Ok(None);
        }
        let descriptor = self.ring.read_entry(self.head);
        self.head = self.head.wrapping_add(1);
        Ok(Some(descriptor))
    }

    /// Frees the entries of all popped descriptors. Only after their leases were accepted.
    pub fn commit_head(&mut self) {
        // Release: pairs with the Acquire load in `used_entries`; the copies precede any
        // overwriting.
        self.ring.head.store(self.head, Ordering::Release);
    }

    /// Takes the producer's wakeup request; read once, after commit and a full fence.
    pub fn take_wakeup_request(&self) -> bool {
        // Load before swap: the usual 0 costs the producer no cache line. The swap takes the
        // request once.
        self.ring.wakeup_requested.load(Ordering::Relaxed) == 1
            && self.ring.wakeup_requested.swap(0, Ordering::AcqRel) == 1
    }

    fn refresh_tail(&mut self) -> Result<bool, RingPoisoned> {
        if self.cached_tail == self.head {
            // Acquire: pairs with the producer's Release store of `tail`.
            let tail = self.ring.tail.load(Ordering::Acquire);
            if tail.wrapping_sub(self.head) > self.ring.capacity() {
                return Err(RingPoisoned);
            }
            self.cached_tail = tail;
        }
        Ok(self.cached_tail != self.head)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::descriptor::SlotId;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn descriptor(n: u32) -> Descriptor {
        Descriptor {
            slot: SlotId(n),
            generation: n ^ 7,
            offset: n.wrapping_mul(8),
            length: !n,
        }
    }

    proptest! {
        #[test]
        fn a_ring_behaves_like_a_bounded_queue(start: u32, bits in 0usize..6, steps in proptest::collection::vec(0u8..4, 0..300)) {
            let capacity = 1 << bits;
            let ring = Ring::in_memory(capacity, start);
            let (mut producer, mut consumer) = (RingProducer::new(ring.clone(), start), RingConsumer::new(ring.clone(), start));
            let (mut model, mut popped, mut n) = (VecDeque::new(), 0, 0);
            for step in steps {
                match step {
                    0 | 1 => {
                        let fits = model.len() + popped < capacity;
                        prop_assert_eq!(producer.push_descriptor(descriptor(n)), if fits { Ok(()) } else { Err(PushError::Full) });
                        if fits {
                            model.push_back(n);
                        }
                        n += 1;
                    }
                    2 => {
                        let next: Option<u32> = model.pop_front();
                        popped += usize::from(next.is_some());
                        prop_assert_eq!(consumer.pop_descriptor(), Ok(next.map(descriptor)));
                    }
                    _ => {
                        consumer.commit_head();
                        popped = 0;
                    }
                }
                prop_assert_eq!(consumer.is_empty(), model.is_empty());
                prop_assert_eq!(producer.free_entries(), Ok((capacity - model.len() - popped) as u32));
                let unconsumed: Vec<_> = producer.unconsumed().skip(popped).collect();
                prop_assert_eq!(unconsumed, model.iter().copied().map(descriptor).collect::<Vec<_>>());
            }
        }

        #[test]
        fn impossible_indices_of_a_hostile_peer_are_refused(start: u32, tail: u32, head: u32) {
            let ring = Ring::in_memory(16, start);
            let (mut producer, mut consumer) = (RingProducer::new(ring.clone(), start), RingConsumer::new(ring.clone(), start));
            ring.tail.store(tail, Ordering::Relaxed);
            ring.head.store(head, Ordering::Relaxed);
            let pops = std::iter::from_fn(|| consumer.pop_descriptor().ok().flatten()).take(100).count();
            prop_assert_eq!(pops as u32, if tail.wrapping_sub(start) <= 16 { tail.wrapping_sub(start) } else { 0 });
            prop_assert_eq!(producer.free_entries().is_ok(), start.wrapping_sub(head) <= 16);
        }
    }

    #[test]
    fn a_wakeup_request_is_taken_once() {
        let ring = Ring::in_memory(1, 0);
        let (mut producer, mut consumer) = (
            RingProducer::new(ring.clone(), 0),
            RingConsumer::new(ring, 0),
        );
        producer.push_descriptor(descriptor(1)).unwrap();
        assert_eq!(producer.request_wakeup(), Ok(false));
        consumer.pop_descriptor().unwrap();
        consumer.commit_head();
        assert!(consumer.take_wakeup_request() && !consumer.take_wakeup_request());
        assert_eq!(producer.request_wakeup(), Ok(true));
    }
}
