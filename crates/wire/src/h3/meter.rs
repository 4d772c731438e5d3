//! What a peer has sent and nobody has taken yet. `h3` gathers a frame that is not data until it is complete, however long it
//! claims to be: the limit is here, below it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Clones count together. Atomic only so that a request's body can go to another thread.
#[derive(Debug, Clone)]
pub(super) struct Meter {
    left: Arc<AtomicU64>,
    most: u64,
}

impl Meter {
    /// At most so many bytes.
    pub(super) fn new(most: u64) -> Self {
        Self { left: Arc::new(AtomicU64::new(most)), most }
    }

    /// Bytes came. False: they are too many.
    pub(super) fn came(&self, bytes: usize) -> bool {
        let left = self.left.load(Ordering::Relaxed).checked_sub(bytes as u64);
        self.left.store(left.unwrap_or(0), Ordering::Relaxed);
        left.is_some()
    }

    /// What came was taken: all of it again may come.
    pub(super) fn taken(&self) {
        self.left.store(self.most, Ordering::Relaxed);
    }

    /// So many more may come, without any being taken; never more than at first, or a patient peer could save them up.
    pub(super) fn allow(&self, bytes: u64) {
        let left = self.left.load(Ordering::Relaxed).saturating_add(bytes);
        self.left.store(left.min(self.most), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_nobody_took() {
        let meter = Meter::new(10);
        assert!(meter.came(6) && meter.clone().came(4) && !meter.came(1));
        meter.taken();
        assert!(meter.came(10) && !meter.came(1));
        meter.allow(3);
        assert!(meter.came(3) && !meter.came(1));
        (0..100).for_each(|_| meter.allow(3));
        assert!(meter.came(10) && !meter.came(1), "nothing is saved up");
    }
}
