//! Atomics of this crate: those of the standard library, or with `--cfg loom` those of the model
//! checker loom (`make loom`). Public for `tests/loom.rs`.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
