//! A reference into shared memory that keeps the mapping alive.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// A `T` (atomics, or slices of them) in a mapping, or on the heap in tests. Cloning shares the place, not the value.
pub struct Shared<T: ?Sized> {
    place: NonNull<T>,
    keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: it is a shared reference to a `T` with an owner that may be dropped by any thread; so is `Arc<T>`.
unsafe impl<T: ?Sized + Sync> Send for Shared<T> {}
// SAFETY: as above; only `&T` can be had from it.
unsafe impl<T: ?Sized + Sync> Sync for Shared<T> {}

impl<T: ?Sized> Shared<T> {
    /// # Safety
    /// `place` is aligned and stays valid for reads and writes through `&T` for as long as `keep` lives.
    pub unsafe fn new(place: NonNull<T>, keep: Arc<dyn Any + Send + Sync>) -> Self {
        Self { place, keep }
    }

    /// A part of it.
    pub fn map<U: ?Sized>(&self, part: impl for<'a> FnOnce(&'a T) -> &'a U) -> Shared<U> {
        Shared { place: NonNull::from(part(self)), keep: Arc::clone(&self.keep) }
    }
}

impl<T: Send + Sync + 'static> Shared<[T]> {
    /// Values on this process's heap: for tests and for what only threads share.
    pub fn own(values: Vec<T>) -> Self {
        let keep = Arc::new(values);
        Self { place: NonNull::from(keep.as_slice()), keep }
    }
}

impl<T: ?Sized> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `new` demands that the place is valid while `keep` lives; `own` and `map` see to it themselves.
        unsafe { self.place.as_ref() }
    }
}

impl<T: ?Sized> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { place: self.place, keep: Arc::clone(&self.keep) }
    }
}

impl<T: ?Sized> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}
