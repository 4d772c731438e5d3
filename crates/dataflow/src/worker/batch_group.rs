//! Encoded items that are not sent yet.

use std::mem;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::topology::Distribution;

/// Shortest time until a batch without room at its consumer is tried again.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The items for a group of outputs, which shares them by its distribution. Time is an argument.
///
/// A batch is due when it is full, or when its first item has waited for the linger.
#[derive(Debug)]
pub(super) struct BatchGroup {
    distribution: Distribution,
    outputs: Vec<usize>,
    /// Outputs that are not open yet, checked before each batch.
    pending_outputs: Vec<usize>,
    /// One for each output with keys, else a single one.
    batches: Vec<OpenBatch>,
    next_output: usize,
    /// Size in bytes at which a batch is full.
    full_bytes: usize,
    linger: Option<Duration>,
}

#[derive(Clone, Debug, Default)]
struct OpenBatch {
    bytes: Vec<u8>,
    due_at: Option<Instant>,
}

/// Effect of an appended item on its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchState {
    /// The batch waits for further items.
    Open,
    /// The linger of the batch begins with this item.
    Opened,
    /// The batch must be sent.
    Full,
}

impl BatchGroup {
    /// Creates the group; its outputs are pending. `linger` `None`: only full batches are due.
    pub(super) fn new(
        distribution: Distribution,
        outputs: Vec<usize>,
        full_bytes: usize,
        linger: Option<Duration>,
    ) -> Self {
        let count = if distribution == Distribution::ByKey {
            outputs.len()
        } else {
            1
        };
        Self {
            distribution,
            outputs: Vec::new(),
            pending_outputs: outputs,
            batches: vec![OpenBatch::default(); count],
            next_output: 0,
            full_bytes,
            linger,
        }
    }

    /// Time that an item waits for others at most.
    pub(super) fn linger(&self) -> Option<Duration> {
        self.linger
    }

    /// Number of batches.
    pub(super) fn batch_count(&self) -> usize {
        self.batches.len()
    }

    /// Appends an encoded item to batch `at`. Clears `item`, and may exchange its memory.
    #[inline] // called for each item
    pub(super) fn append(
        &mut self,
        at: usize,
        item: &mut Vec<u8>,
        now: impl FnOnce() -> Instant,
    ) -> BatchState {
        let batch = &mut self.batches[at];
        let is_first = batch.bytes.is_empty();
        if is_first && item.len() >= self.full_bytes {
            mem::swap(&mut batch.bytes, item); // a long item is not copied
        } else {
            batch.bytes.extend_from_slice(item);
        }
        item.clear();
        // Full, not before: a batch may exceed the size by one item.
        if batch.bytes.len() >= self.full_bytes
            || self.linger.is_some_and(|linger| linger.is_zero())
        {
            return BatchState::Full;
        }
        if !is_first {
            return BatchState::Open;
        }
        batch.due_at = self.linger.and_then(|linger| now().checked_add(linger));
        if batch.due_at.is_some() {
            BatchState::Opened
        } else {
            BatchState::Open
        }
    }

    /// Adds outputs that were opened meanwhile, which only `spread` groups have.
    pub(super) fn open_pending(&mut self, filter_open: impl FnOnce(&[usize]) -> Vec<usize>) {
        if !self.pending_outputs.is_empty() {
            let open = filter_open(&self.pending_outputs);
            self.pending_outputs.retain(|output| !open.contains(output));
            self.outputs.extend(open);
        }
    }

    /// Outputs that get batch `at`; empty without items.
    pub(super) fn targets(&self, at: usize) -> &[usize] {
        match self.distribution {
            _ if self.batches[at].bytes.is_empty() => &[],
            Distribution::Broadcast => &self.outputs,
            Distribution::Spread => {
                // Round robin: consumers of a spread group are interchangeable.
                let next = (self.next_output + 1) % self.outputs.len();
                &self.outputs[next..=next]
            }
            Distribution::ByKey | Distribution::OneToOne | Distribution::Gather => {
                &self.outputs[at..=at]
            }
        }
    }

    /// Bytes of batch `at`.
    pub(super) fn batch_len(&self, at: usize) -> usize {
        self.batches[at].bytes.len()
    }

    /// Takes batch `at`. The next one goes to the next output of a `spread` group.
    pub(super) fn take(&mut self, at: usize) -> Bytes {
        if self.distribution == Distribution::Spread {
            self.next_output = (self.next_output + 1) % self.outputs.len();
        }
        let batch = &mut self.batches[at];
        batch.due_at = None;
        // A short batch is copied: it would hold the memory of a full one until it is acknowledged.
        if batch.bytes.len() < batch.bytes.capacity() / 2 {
            let bytes = Bytes::copy_from_slice(&batch.bytes);
            batch.bytes.clear();
            return bytes;
        }
        // The next batch will have about the same size.
        let capacity = batch.bytes.capacity().min(2 * self.full_bytes);
        Bytes::from(mem::replace(&mut batch.bytes, Vec::with_capacity(capacity)))
    }

    /// Batches whose linger has passed.
    pub(super) fn due_batches(&self, now: Instant) -> Vec<usize> {
        let is_due = |batch: &OpenBatch| batch.due_at.is_some_and(|due| due <= now);
        (0..self.batches.len())
            .filter(|at| is_due(&self.batches[*at]))
            .collect()
    }

    /// Postpones a batch without room at its consumer.
    pub(super) fn postpone(&mut self, at: usize, now: Instant) {
        let interval = self.linger.unwrap_or_default().max(MIN_RETRY_INTERVAL);
        self.batches[at].due_at = Some(now + interval);
    }

    /// Time at which the next batch is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.batches.iter().filter_map(|batch| batch.due_at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINGER: Duration = Duration::from_millis(50);

    fn group(distribution: Distribution, outputs: usize, linger: Option<Duration>) -> BatchGroup {
        let mut group = BatchGroup::new(distribution, (0..outputs).collect(), 10, linger);
        group.open_pending(<[usize]>::to_vec);
        group
    }

    fn append(group: &mut BatchGroup, at: usize, item: &str, now: Instant) -> BatchState {
        group.append(at, &mut item.as_bytes().to_vec(), || now)
    }

    #[test]
    fn a_batch_is_due_when_its_first_item_has_waited_for_the_linger() {
        let (mut group, start) = (group(Distribution::Gather, 1, Some(LINGER)), Instant::now());
        assert_eq!(append(&mut group, 0, "one", start), BatchState::Opened);
        assert_eq!(
            append(&mut group, 0, "two", start + LINGER / 2),
            BatchState::Open
        );
        assert_eq!(group.next_due(), Some(start + LINGER));
        assert!(group.due_batches(start + LINGER / 2).is_empty());
        assert_eq!(group.due_batches(start + LINGER), [0]);
        assert_eq!(
            (group.take(0), group.next_due()),
            (Bytes::from_static(b"onetwo"), None)
        );
        assert!(group.targets(0).is_empty());
    }

    #[test]
    fn a_full_batch_is_sent_at_once_and_a_long_item_alone() {
        let (mut group, start) = (group(Distribution::Gather, 1, None), Instant::now());
        assert_eq!(append(&mut group, 0, "12345", start), BatchState::Open);
        assert_eq!(group.next_due(), None);
        assert_eq!(append(&mut group, 0, "67890", start), BatchState::Full);
        assert_eq!(group.take(0), "1234567890");
        assert_eq!(
            append(&mut group, 0, "a longer item", start),
            BatchState::Full
        );
        assert_eq!(group.take(0), "a longer item");
    }

    #[test]
    fn without_linger_each_item_is_sent() {
        let mut group = group(Distribution::Gather, 1, Some(Duration::ZERO));
        assert_eq!(append(&mut group, 0, "1", Instant::now()), BatchState::Full);
    }

    #[test]
    fn a_spread_group_serves_its_outputs_in_turn() {
        let (mut group, start) = (group(Distribution::Spread, 3, Some(LINGER)), Instant::now());
        let mut turns = Vec::new();
        for _ in 0..4 {
            append(&mut group, 0, "x", start);
            turns.extend_from_slice(group.targets(0));
            group.take(0);
        }
        assert_eq!(turns, [1, 2, 0, 1]);
    }

    #[test]
    fn each_key_has_its_own_batch_and_linger() {
        let (mut group, start) = (group(Distribution::ByKey, 2, Some(LINGER)), Instant::now());
        append(&mut group, 0, "a", start);
        append(&mut group, 1, "b", start + LINGER / 2);
        assert_eq!(group.due_batches(start + LINGER), [0]);
        group.postpone(0, start + LINGER);
        assert_eq!(group.next_due(), Some(start + LINGER * 3 / 2));
        assert_eq!((group.targets(0), group.targets(1)), (&[0][..], &[1][..]));
    }

    #[test]
    fn a_short_batch_does_not_keep_the_memory_of_a_full_one() {
        let mut group = BatchGroup::new(Distribution::Gather, vec![0], 1000, Some(LINGER));
        group.open_pending(<[usize]>::to_vec);
        append(&mut group, 0, &"x".repeat(999), Instant::now());
        group.take(0);
        append(&mut group, 0, "short", Instant::now());
        let memory = group.batches[0].bytes.as_ptr();
        assert_ne!(group.take(0).as_ptr(), memory);
    }
}
