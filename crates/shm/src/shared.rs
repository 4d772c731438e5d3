//! A reference into shared memory that keeps the mapping alive.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// A `T` (atomics, or slices of them) in a mapping, or on the heap in tests. Clones share the
/// value.
pub struct SharedRef<T: ?Sized> {
    target: NonNull<T>,
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: it is a shared reference to a `T` with an owner that may be dropped by any thread; so is
// `Arc<T>`.
unsafe impl<T: ?Sized + Sync> Send for SharedRef<T> {}
// SAFETY: as above; only `&T` can be had from it.
unsafe impl<T: ?Sized + Sync> Sync for SharedRef<T> {}

impl<T: ?Sized> SharedRef<T> {
    /// Wraps a pointer and the owner of its memory.
    ///
    /// # Safety
    /// `place` is aligned and stays valid for reads and writes through `&T` for as long as `keep`
    /// lives.
    pub unsafe fn new(place: NonNull<T>, keep: Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            target: place,
            owner: keep,
        }
    }

    /// Returns a reference to a part of the value, with the same owner.
    pub fn map<U: ?Sized>(&self, part: impl for<'a> FnOnce(&'a T) -> &'a U) -> SharedRef<U> {
        SharedRef {
            target: NonNull::from(part(self)),
            owner: Arc::clone(&self.owner),
        }
    }
}

impl<T: Send + Sync + 'static> SharedRef<[T]> {
    /// Creates values on the heap of this process, for tests and for data that only threads share.
    pub fn from_vec(values: Vec<T>) -> Self {
        let keep = Arc::new(values);
        Self {
            target: NonNull::from(keep.as_slice()),
            owner: keep,
        }
    }
}

impl<T: ?Sized> Deref for SharedRef<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `new` demands that the place is valid while `keep` lives; `from_vec` and `map`
        // guarantee it.
        unsafe { self.target.as_ref() }
    }
}

impl<T: ?Sized> Clone for SharedRef<T> {
    fn clone(&self) -> Self {
        Self {
            target: self.target,
            owner: Arc::clone(&self.owner),
        }
    }
}

impl<T: ?Sized> fmt::Debug for SharedRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}
