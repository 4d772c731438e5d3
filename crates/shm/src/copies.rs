//! Counts the body bytes that a thread copies into and out of pools. Requires the feature `copies`;
//! used by tests and benchmarks.

#[cfg(feature = "copies")]
mod count {
    use std::cell::Cell;

    thread_local! {
        static COPIED_BYTES: Cell<u64> = const { Cell::new(0) };
    }

    pub(crate) fn count_copied(bytes: usize) {
        COPIED_BYTES.set(COPIED_BYTES.get() + bytes as u64);
    }

    /// Returns the bytes that this thread has copied since it started.
    pub fn copied_bytes() -> u64 {
        COPIED_BYTES.get()
    }
}

#[cfg(feature = "copies")]
pub use count::copied_bytes;

#[cfg(feature = "copies")]
pub(crate) use count::count_copied;

#[cfg(not(feature = "copies"))]
pub(crate) fn count_copied(_: usize) {}
