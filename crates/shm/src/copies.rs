//! How many bytes of bodies a thread has copied into and out of pools: with the feature `copies`, for tests and measurements.

#[cfg(feature = "copies")]
mod count {
    use std::cell::Cell;

    thread_local! {
        static COPIED: Cell<u64> = const { Cell::new(0) };
    }

    pub(crate) fn copied(bytes: usize) {
        COPIED.set(COPIED.get() + bytes as u64);
    }

    /// By this thread, since it began.
    pub fn so_far() -> u64 {
        COPIED.get()
    }
}

#[cfg(feature = "copies")]
pub use count::so_far;

#[cfg(feature = "copies")]
pub(crate) use count::copied;

#[cfg(not(feature = "copies"))]
pub(crate) fn copied(_: usize) {}
