//! Memory and files of a thread for frames that wait.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nearpath_types::SourceNetwork;

use super::budget::SpoolBudget;
use super::directory::SpoolDirectory;

/// Maximum bytes of one transfer in memory.
const MAX_TRANSFER_MEMORY_BYTES: usize = 1024 * 1024;
/// Maximum bytes of a thread in memory. Above, each transfer has one frame.
const MAX_MEMORY_BYTES: usize = 128 * 1024 * 1024;
/// Time without new files after a failed write: a full disk stays full for a while, and each
/// try would cost a log line.
const WRITE_ERROR_BACKOFF: Duration = Duration::from_secs(10);

/// Memory and files of a thread for frames that wait.
pub(crate) struct SpoolStore {
    /// `None`: frames wait in memory only.
    directory: Option<Arc<SpoolDirectory>>,
    budget: RefCell<SpoolBudget>,
    memory_bytes: Cell<usize>,
    /// Time until which no file is begun.
    paused_until: Cell<Option<Instant>>,
    total_bytes: Arc<AtomicU64>,
}

impl SpoolStore {
    /// Creates the store of a thread. `total_bytes` counts the bytes in files over all threads.
    pub(crate) fn new(
        directory: Option<Arc<SpoolDirectory>>,
        total_bytes: Arc<AtomicU64>,
    ) -> Rc<Self> {
        let limits = directory.as_ref().map(|directory| directory.limits);
        Rc::new(Self {
            budget: RefCell::new(SpoolBudget::new(limits.unwrap_or_default())),
            directory,
            memory_bytes: Cell::new(0),
            paused_until: Cell::new(None),
            total_bytes,
        })
    }

    /// Returns whether a transfer with `transfer_bytes` in memory may add a frame there.
    pub(super) fn has_memory(&self, transfer_bytes: usize) -> bool {
        transfer_bytes == 0
            || (transfer_bytes < MAX_TRANSFER_MEMORY_BYTES
                && self.memory_bytes.get() < MAX_MEMORY_BYTES)
    }

    /// Counts bytes in memory.
    pub(super) fn add_memory(&self, bytes: usize) {
        self.memory_bytes.set(self.memory_bytes.get() + bytes);
    }

    /// Counts bytes that left the memory.
    pub(super) fn remove_memory(&self, bytes: usize) {
        self.memory_bytes.set(self.memory_bytes.get() - bytes);
    }

    /// Returns whether a transfer of `source` may begin a file.
    pub(super) fn can_begin(&self, source: SourceNetwork) -> bool {
        let is_paused = |until: Instant| Instant::now() < until;
        self.directory.is_some()
            && self.budget.borrow().can_begin(source)
            && !self.paused_until.get().is_some_and(is_paused)
    }

    /// Counts a new file; `None` beyond the bounds.
    pub(super) fn begin_share(self: &Rc<Self>, source: SourceNetwork) -> Option<SpoolShare> {
        let directory = self.directory.clone().filter(|_| self.can_begin(source))?;
        self.budget.borrow_mut().begin_file(source);
        Some(SpoolShare {
            store: self.clone(),
            directory,
            source,
            bytes: 0,
        })
    }

    /// Begins no file for a while, because a write failed.
    pub(super) fn pause(&self, error: &io::Error) {
        tracing::warn!(
            %error,
            pause = ?WRITE_ERROR_BACKOFF,
            "gateway: write to the spool failed, slow callers hold their permits meanwhile"
        );
        self.paused_until
            .set(Some(Instant::now() + WRITE_ERROR_BACKOFF));
    }

    #[cfg(test)]
    pub(super) fn used_bytes(&self) -> (usize, u64) {
        assert_eq!(
            self.total_bytes.load(Ordering::Relaxed),
            self.budget.borrow().used_bytes()
        );
        (self.memory_bytes.get(), self.budget.borrow().used_bytes())
    }
}

/// Part of the budget that one file uses. Dropping it returns all of it.
pub(super) struct SpoolShare {
    store: Rc<SpoolStore>,
    pub(super) directory: Arc<SpoolDirectory>,
    source: SourceNetwork,
    bytes: u64,
}

impl SpoolShare {
    /// Returns whether the file may get another frame.
    pub(super) fn has_room(&self) -> bool {
        self.store.budget.borrow().can_add(self.source, self.bytes)
    }

    /// Counts bytes that go to the file.
    pub(super) fn add_bytes(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.store.budget.borrow_mut().add_bytes(self.source, bytes);
        // Relaxed: a gauge, which orders nothing.
        self.store.total_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that the file has no more.
    pub(super) fn remove_bytes(&mut self, bytes: u64) {
        self.bytes -= bytes;
        let mut budget = self.store.budget.borrow_mut();
        budget.remove_bytes(self.source, bytes);
        self.store.total_bytes.fetch_sub(bytes, Ordering::Relaxed); // a gauge
    }

    /// See [`SpoolStore::pause`].
    pub(super) fn pause_store(&self, error: &io::Error) {
        self.store.pause(error);
    }
}

impl Drop for SpoolShare {
    fn drop(&mut self) {
        let mut budget = self.store.budget.borrow_mut();
        budget.end_file(self.source, self.bytes);
        self.store
            .total_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed); // a gauge
    }
}
