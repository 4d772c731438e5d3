//! A ring of descriptors with one producer and one consumer that do not trust each other.
//!
//! Both indices run freely and wrap at 2³². Each side keeps its own in private memory and believes of the other's only what
//! keeps `tail − head` within the capacity. Entries are two relaxed atomic words, so that even a producer that breaks the
//! rules makes nothing worse than a wrong descriptor, and that is checked.
//!
//! A consumer publishes its head only with [`Consumer::commit`], after it has taken the leases of what it popped: so a
//! descriptor that is in no ring any more has been accepted, and the node can tell after a death.

use crate::descriptor::Descriptor;
use crate::shared::Shared;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes before the first entry: `tail`, `head` and `starved` on cache lines of their own.
pub const HEADER: usize = 192;
/// Where `head` is.
pub const HEAD_AT: usize = 64;
/// Where `starved` is.
pub const STARVED_AT: usize = 128;

/// The shared words of a ring.
#[derive(Debug, Clone)]
pub struct Ring {
    tail: Shared<AtomicU32>,
    head: Shared<AtomicU32>,
    starved: Shared<AtomicU32>,
    entries: Shared<[AtomicU64]>,
}

impl Ring {
    /// `entries` has two words for each descriptor; their number is a power of two.
    pub fn new(header: [Shared<AtomicU32>; 3], entries: Shared<[AtomicU64]>) -> Self {
        debug_assert!(entries.len().is_power_of_two() && entries.len() >= 2, "capacity is no power of two");
        let [tail, head, starved] = header;
        Self { tail, head, starved, entries }
    }

    /// On the heap: for tests. Both indices begin at `start`.
    pub fn in_memory(capacity: usize, start: u32) -> Self {
        let word = |value| Shared::own(vec![AtomicU32::new(value)]).map(|words| &words[0]);
        let entries = Shared::own((0..2 * capacity).map(|_| AtomicU64::new(0)).collect());
        Self::new([word(start), word(start), word(0)], entries)
    }

    /// Descriptors that fit.
    pub fn capacity(&self) -> u32 {
        (self.entries.len() / 2) as u32
    }

    /// `tail` and `head` as they are in memory at this moment: for the node, and for tests.
    pub fn indices(&self) -> (u32, u32) {
        let head = self.head.load(Ordering::Acquire);
        (self.tail.load(Ordering::Acquire), head)
    }

    /// Whether a descriptor that `wanted` knows lies between head and tail. A ring whose indices are broken holds nothing.
    pub fn holds(&self, wanted: impl Fn(&Descriptor) -> bool) -> bool {
        let (tail, head) = self.indices();
        let length = tail.wrapping_sub(head);
        length <= self.capacity() && (0..length).any(|i| wanted(&self.read(head.wrapping_add(i))))
    }

    fn read(&self, index: u32) -> Descriptor {
        let at = self.place(index);
        Descriptor::from_words([0, 1].map(|k| self.entries[at + k].load(Ordering::Relaxed)))
    }

    fn write(&self, index: u32, descriptor: Descriptor) {
        let at = self.place(index);
        for (k, word) in descriptor.to_words().into_iter().enumerate() {
            self.entries[at + k].store(word, Ordering::Relaxed);
        }
    }

    fn place(&self, index: u32) -> usize {
        2 * (index as usize & (self.capacity() as usize - 1))
    }
}

/// The other side's index is outside what is possible: it is at fault or hostile, and the ring is of no use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other side of a ring broke its index")]
pub struct Poisoned;

/// Why a descriptor was not pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotPushed {
    /// No credit: the consumer has as much as it may have.
    #[error("the ring is full")]
    Full,
    /// See [`Poisoned`].
    #[error(transparent)]
    Poisoned(#[from] Poisoned),
}

/// The side that pushes.
#[derive(Debug)]
pub struct Producer {
    ring: Ring,
    tail: u32,
    head_seen: u32,
}

impl Producer {
    /// `start` is 0 for a ring of the contract.
    pub fn new(ring: Ring, start: u32) -> Self {
        Self { ring, tail: start, head_seen: start }
    }

    /// Descriptors that can be pushed now: the credits.
    pub fn room(&mut self) -> Result<u32, Poisoned> {
        let used = self.used()?;
        Ok(self.ring.capacity() - used)
    }

    /// Pushes one and publishes it. Ring the consumer's desk after the batch.
    pub fn push(&mut self, descriptor: Descriptor) -> Result<(), NotPushed> {
        // The head seen last is enough while there is room by it: one cache miss less a push.
        if self.tail.wrapping_sub(self.head_seen) >= self.ring.capacity() && self.used()? >= self.ring.capacity() {
            return Err(NotPushed::Full);
        }
        self.ring.write(self.tail, descriptor);
        self.tail = self.tail.wrapping_add(1);
        self.ring.tail.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Asks to be rung when the consumer has taken something. True when there is room already; then nobody needs to ring. The
    /// consumer answers once, and who is awake is not rung: ask after saying that the party sleeps, before each sleep.
    pub fn starve(&mut self) -> Result<bool, Poisoned> {
        self.ring.starved.swap(1, Ordering::AcqRel); // an exchange, as the consumer's: one comes after the other
        fence(Ordering::SeqCst);
        Ok(self.room()? > 0)
    }

    /// What was pushed and is not known to be consumed: after the consumer's death.
    pub fn unconsumed(&mut self) -> impl Iterator<Item = Descriptor> + '_ {
        let used = self.used().unwrap_or(self.ring.capacity());
        (0..used).map(move |back| self.ring.read(self.tail.wrapping_sub(used - back)))
    }

    fn used(&mut self) -> Result<u32, Poisoned> {
        let head = self.ring.head.load(Ordering::Acquire);
        let used = self.tail.wrapping_sub(head);
        if used > self.ring.capacity() {
            return Err(Poisoned);
        }
        self.head_seen = head;
        Ok(used)
    }
}

/// The side that pops.
#[derive(Debug)]
pub struct Consumer {
    ring: Ring,
    head: u32,
    tail_seen: u32,
}

impl Consumer {
    /// `start` is 0 for a ring of the contract.
    pub fn new(ring: Ring, start: u32) -> Self {
        Self { ring, head: start, tail_seen: start }
    }

    /// Whether there is nothing to pop. A poisoned ring is not empty: popping tells.
    pub fn is_empty(&mut self) -> bool {
        self.refresh() == Ok(false)
    }

    /// A copy of the next descriptor, unchecked. Its place is the producer's again after [`Consumer::commit`].
    pub fn pop(&mut self) -> Result<Option<Descriptor>, Poisoned> {
        if !self.refresh()? {
            return Ok(None);
        }
        let descriptor = self.ring.read(self.head);
        self.head = self.head.wrapping_add(1);
        Ok(Some(descriptor))
    }

    /// Gives back the places of all that was popped. Only after their leases were taken.
    pub fn commit(&mut self) {
        self.ring.head.store(self.head, Ordering::Release);
    }

    /// Whether the producer waits for room; asked once, after commit and a full fence.
    pub fn feeds_starving(&self) -> bool {
        self.ring.starved.load(Ordering::Relaxed) == 1 && self.ring.starved.swap(0, Ordering::AcqRel) == 1
    }

    fn refresh(&mut self) -> Result<bool, Poisoned> {
        if self.tail_seen == self.head {
            let tail = self.ring.tail.load(Ordering::Acquire);
            if tail.wrapping_sub(self.head) > self.ring.capacity() {
                return Err(Poisoned);
            }
            self.tail_seen = tail;
        }
        Ok(self.tail_seen != self.head)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::descriptor::Slot;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn descriptor(n: u32) -> Descriptor {
        Descriptor { slot: Slot(n), generation: n ^ 7, offset: n.wrapping_mul(8), length: !n }
    }

    proptest! {
        #[test]
        fn like_a_queue(start: u32, bits in 0usize..6, steps in proptest::collection::vec(0u8..4, 0..300)) {
            let capacity = 1 << bits;
            let ring = Ring::in_memory(capacity, start);
            let (mut producer, mut consumer) = (Producer::new(ring.clone(), start), Consumer::new(ring.clone(), start));
            let (mut model, mut popped, mut n) = (VecDeque::new(), 0, 0);
            for step in steps {
                match step {
                    0 | 1 => {
                        let fits = model.len() + popped < capacity;
                        prop_assert_eq!(producer.push(descriptor(n)), if fits { Ok(()) } else { Err(NotPushed::Full) });
                        if fits {
                            model.push_back(n);
                        }
                        n += 1;
                    }
                    2 => {
                        let next: Option<u32> = model.pop_front();
                        popped += usize::from(next.is_some());
                        prop_assert_eq!(consumer.pop(), Ok(next.map(descriptor)));
                    }
                    _ => {
                        consumer.commit();
                        popped = 0;
                    }
                }
                prop_assert_eq!(consumer.is_empty(), model.is_empty());
                prop_assert_eq!(producer.room(), Ok((capacity - model.len() - popped) as u32));
                let unconsumed: Vec<_> = producer.unconsumed().skip(popped).collect();
                prop_assert_eq!(unconsumed, model.iter().copied().map(descriptor).collect::<Vec<_>>());
            }
        }

        #[test]
        fn indices_of_a_hostile_peer(start: u32, tail: u32, head: u32) {
            let ring = Ring::in_memory(16, start);
            let (mut producer, mut consumer) = (Producer::new(ring.clone(), start), Consumer::new(ring.clone(), start));
            ring.tail.store(tail, Ordering::Relaxed);
            ring.head.store(head, Ordering::Relaxed);
            let pops = std::iter::from_fn(|| consumer.pop().ok().flatten()).take(100).count();
            prop_assert_eq!(pops as u32, if tail.wrapping_sub(start) <= 16 { tail.wrapping_sub(start) } else { 0 });
            prop_assert_eq!(producer.room().is_ok(), start.wrapping_sub(head) <= 16);
        }
    }

    #[test]
    fn a_starving_producer_is_fed_once() {
        let ring = Ring::in_memory(1, 0);
        let (mut producer, mut consumer) = (Producer::new(ring.clone(), 0), Consumer::new(ring, 0));
        producer.push(descriptor(1)).unwrap();
        assert_eq!(producer.starve(), Ok(false));
        consumer.pop().unwrap();
        consumer.commit();
        assert!(consumer.feeds_starving() && !consumer.feeds_starving());
        assert_eq!(producer.starve(), Ok(true));
    }
}
