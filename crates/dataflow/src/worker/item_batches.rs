//! Batches of encoded items, sent when they are full or have waited for their linger.

use std::future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time;

use super::WorkerFailure;
use super::batch_group::BatchState;
use super::open_batches::{GroupSlot, OutputGroup, lock};
use super::shared::WorkerShared;

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
        let slots = groups
            .into_iter()
            .map(|group| GroupSlot::new(group, full_bytes));
        let groups: Arc<[GroupSlot]> = slots.collect();
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
