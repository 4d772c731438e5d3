//! Private memory that faults: what a receiver's allocation of one certain size is given.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Bytes of the allocation that falls into the trap; nothing else in this program is of this size.
pub(crate) const TRAP_BYTES: usize = 3 * super::watch::PAGE_BYTES;

static TRAP_ADDRESS: AtomicUsize = AtomicUsize::new(0);
static ARMED_ADDRESS: AtomicUsize = AtomicUsize::new(0);

/// Never touched pages, which the next allocation of [`TRAP_BYTES`] bytes gets. One test at a time.
pub(crate) fn arm_trap() -> usize {
    let flags = MapFlags::PRIVATE;
    // SAFETY: a new mapping at an address that the kernel chooses. It stays until the program ends.
    let place = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            TRAP_BYTES,
            ProtFlags::READ | ProtFlags::WRITE,
            flags,
        )
    };
    let place = place.unwrap() as usize;
    TRAP_ADDRESS.store(place, Ordering::SeqCst);
    ARMED_ADDRESS.store(place, Ordering::SeqCst);
    place
}

struct TrapAllocator;

#[global_allocator]
static TRAP_ALLOCATOR: TrapAllocator = TrapAllocator;

// SAFETY: the system's allocator, but for one allocation, which gets a mapping of its own that is
// never given to others.
unsafe impl GlobalAlloc for TrapAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() == TRAP_BYTES {
            let place = ARMED_ADDRESS.swap(0, Ordering::SeqCst);
            if place != 0 {
                return place as *mut u8;
            }
        }
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if place as usize != TRAP_ADDRESS.load(Ordering::SeqCst) {
            // SAFETY: the caller keeps the promises of `dealloc`, and the place came from the
            // system.
            unsafe { System.dealloc(place, layout) }
        }
    }
}
