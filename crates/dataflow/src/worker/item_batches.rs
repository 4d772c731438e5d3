//! Batches of encoded items, sent when they are full or have waited for their linger.

use std::future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time;

use super::WorkerFailure;
use super::batch_group::{BatchGroup, BatchState};
use super::shared::WorkerShared;
use crate::topology::Distribution;

/// Configuration of outputs that share items.
#[derive(Clone, Debug)]
pub struct OutputGroup {
    /// Choice of the output for an item.
    pub distribution: Distribution,
    /// Indices of the outputs.
    pub outputs: Vec<usize>,
    /// Time that an item waits for others at most; `None`: until its batch is full.
    pub linger: Option<Duration>,
}

/// Unfinished batches of a worker. One thread appends items; any thread may send.
pub struct ItemBatches {
    shared: Arc<WorkerShared>,
    groups: Arc<[GroupSlot]>,
}

impl ItemBatches {
    pub(super) fn begin(
        shared: Arc<WorkerShared>,
        groups: Vec<OutputGroup>,
        full_bytes: usize,
    ) -> Result<Self, WorkerFailure> {
        let slot = |group: OutputGroup| GroupSlot {
            sending: Mutex::new(()),
            state: Mutex::new(BatchGroup::new(
                group.distribution,
                group.outputs,
                full_bytes,
                group.linger,
            )),
        };
        let groups: Arc<[GroupSlot]> = groups.into_iter().map(slot).collect();
        let is_first = shared.open_batches.groups.set(Arc::clone(&groups));
        is_first.map_err(|_| {
            WorkerFailure::Local("the worker collects items into batches already".to_owned())
        })?;
        Ok(Self { shared, groups })
    }

    /// Appends an encoded item to batch `at` of a group, and clears `item`. Returns true if the
    /// batch is full: the caller sends it before the next item.
    #[inline] // called for each item
    pub fn append(&self, group: usize, at: usize, item: &mut Vec<u8>) -> bool {
        let state = lock(&self.groups[group].state).append(at, item, Instant::now);
        if state == BatchState::Opened {
            self.shared.open_batches.wake_linger();
        }
        state == BatchState::Full
    }

    /// Sends batch `at` of a group. Waits while the window is full.
    ///
    /// # Errors
    /// The failure that ended an edge; a batch larger than a frame.
    pub fn send(&self, group: usize, at: usize) -> Result<(), WorkerFailure> {
        let slot = &self.groups[group];
        let _sending = lock(&slot.sending);
        let (targets, batch) = {
            let mut state = lock(&slot.state);
            state.open_pending(|outputs| self.shared.filter_open_outputs(outputs));
            let targets = state.targets(at).to_vec();
            if targets.is_empty() {
                return Ok(());
            }
            (targets, state.take(at))
        };
        targets
            .iter()
            .try_for_each(|output| self.shared.send_batch(*output, batch.clone()))
    }

    /// Sends all unfinished batches.
    ///
    /// # Errors
    /// As [`ItemBatches::send`].
    pub fn flush(&self) -> Result<(), WorkerFailure> {
        for (group, slot) in self.groups.iter().enumerate() {
            let count = lock(&slot.state).batch_count();
            (0..count).try_for_each(|at| self.send(group, at))?;
        }
        Ok(())
    }
}

/// The batches of a worker, for its thread and for the timer.
#[derive(Default)]
pub(super) struct OpenBatches {
    groups: OnceLock<Arc<[GroupSlot]>>,
    /// The timer waits for an item instead of a time.
    is_idle: AtomicBool,
    opened: Notify,
}

struct GroupSlot {
    /// Held from the moment at which a batch is taken until it is queued, so that batches keep
    /// their order. Locked before `state`.
    sending: Mutex<()>,
    state: Mutex<BatchGroup>,
}

impl OpenBatches {
    fn groups(&self) -> &[GroupSlot] {
        self.groups.get().map_or(&[], |groups| &**groups)
    }

    /// Wakes the timer at the first item after a pause, not at each batch of a busy producer.
    fn wake_linger(&self) {
        // Relaxed: the lock of the group orders this after the timer's store, or its check after
        // the item.
        if self.is_idle.swap(false, Ordering::Relaxed) {
            self.opened.notify_one();
        }
    }
}

impl WorkerShared {
    /// Sends batches whose linger has passed, until the worker fails.
    pub(super) async fn run_linger(&self) {
        if let Err(failure) = self.send_lingering().await {
            self.record_failure(failure);
        }
        future::pending().await
    }

    async fn send_lingering(&self) -> Result<(), WorkerFailure> {
        let open = &self.open_batches;
        loop {
            if let Some(due) = self.send_due_batches(Instant::now())? {
                time::sleep_until(due.into()).await;
                continue;
            }
            open.is_idle.store(true, Ordering::Relaxed);
            // Again: an item may have arrived before the store, so its thread did not notify.
            if self.send_due_batches(Instant::now())?.is_none() {
                open.opened.notified().await;
            }
        }
    }

    /// Sends the batches that are due, without a wait. Returns the time of the next check.
    fn send_due_batches(&self, now: Instant) -> Result<Option<Instant>, WorkerFailure> {
        let mut next_check: Option<Instant> = None;
        let mut shortest_linger: Option<Duration> = None;
        for slot in self.open_batches.groups() {
            let next_due = self.send_due_of(slot, now)?;
            // Without linger no batch waits, so there is nothing to check.
            let linger = lock(&slot.state)
                .linger()
                .filter(|linger| !linger.is_zero());
            next_check = [next_check, next_due].into_iter().flatten().min();
            shortest_linger = [shortest_linger, linger].into_iter().flatten().min();
        }
        // A batch with a shorter linger may open before then, without a notification.
        let latest = shortest_linger.and_then(|linger| now.checked_add(linger));
        Ok(next_check.map(|next| latest.map_or(next, |latest| next.min(latest))))
    }

    fn send_due_of(
        &self,
        slot: &GroupSlot,
        now: Instant,
    ) -> Result<Option<Instant>, WorkerFailure> {
        // The worker's thread may hold it while it waits for room: this thread may not wait.
        let sending = slot.sending.try_lock();
        let mut state = lock(&slot.state);
        for at in state.due_batches(now) {
            state.open_pending(|outputs| self.filter_open_outputs(outputs));
            let targets = state.targets(at).to_vec();
            if sending.is_err() || !self.has_room(&targets, state.batch_len(at)) {
                state.postpone(at, now);
                continue;
            }
            let batch = state.take(at);
            targets
                .iter()
                .try_for_each(|output| self.send_batch(*output, batch.clone()))?;
        }
        Ok(state.next_due())
    }
}

#[inline]
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
