//! Batches that the thread of a worker fills, and that a timer sends after their linger.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::batch_group::BatchGroup;
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

/// The batches of a worker, for its thread and for the timer.
#[derive(Default)]
pub(super) struct OpenBatches {
    pub(super) groups: OnceLock<Arc<[GroupSlot]>>,
    /// The timer waits for an item instead of a time.
    pub(super) is_idle: AtomicBool,
    pub(super) opened: Notify,
}

pub(super) struct GroupSlot {
    /// Held from the moment at which a batch is taken until it is queued, so that batches keep
    /// their order. Locked before `state`.
    pub(super) sending: Mutex<()>,
    pub(super) state: Mutex<BatchGroup>,
}

impl GroupSlot {
    pub(super) fn new(group: OutputGroup, full_bytes: usize) -> Self {
        Self {
            sending: Mutex::new(()),
            state: Mutex::new(BatchGroup::new(
                group.distribution,
                group.outputs,
                full_bytes,
                group.linger,
            )),
        }
    }
}

impl OpenBatches {
    pub(super) fn groups(&self) -> &[GroupSlot] {
        self.groups.get().map_or(&[], |groups| &**groups)
    }

    /// Wakes the timer at the first item after a pause, not at each batch of a busy producer.
    pub(super) fn wake_linger(&self) {
        // Relaxed: the lock of the group orders this after the timer's store, or its check after
        // the item.
        if self.is_idle.swap(false, Ordering::Relaxed) {
            self.opened.notify_one();
        }
    }
}

#[inline]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
