//! Panic: a sudden load, for which replicas start at once and none stops.

use std::time::Instant;

use super::limits::{PANIC_GRACE, PANIC_THRESHOLD};

/// State of a function's panic: in panic, or not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PanicMode {
    until: Option<Instant>,
}

impl PanicMode {
    /// Panics if the panic window wants a multiple of the ready replicas. Returns whether the
    /// function is in panic.
    pub(super) fn update(&mut self, now: Instant, wanted: u32, ready: u32) -> bool {
        if wanted >= ready.max(1).saturating_mul(PANIC_THRESHOLD) {
            self.until = Some(now + PANIC_GRACE);
        }
        self.is_active(now)
    }

    pub(super) fn is_active(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    pub(super) fn clear(&mut self) {
        self.until = None;
    }
}
