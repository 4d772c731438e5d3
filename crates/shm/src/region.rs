//! Sealed memory that processes share; all pointers into it are made here.
//!
//! A region is a memfd that can neither shrink nor grow: shrinking would kill its readers with
//! SIGBUS. A received one is mapped only when the seals are set and the size is the reported one.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::shared::SharedRef;
use crate::sync::{AtomicU32, AtomicU64};

/// Page size of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// Default page size.
    Small,
    /// Reserved huge pages, or small pages when none are left. Only for domains whose endpoints
    /// trust each other with availability. A writer can punch a hole, and a missing huge page to
    /// fill it again raises SIGBUS.
    HugeIfAvailable,
}

/// Access of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapAccess {
    /// Read and write.
    Write,
    /// Read only; a write raises SIGSEGV.
    Read,
}

// 2 MiB huge pages of x86-64 and arm64, as `MFD_HUGE_2MB` requests.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Seals without which a region is refused.
const REQUIRED_SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);
/// Seals of a read-only region: only mappings made before can write, and holes cannot be punched.
const READ_ONLY_SEALS: SealFlags = REQUIRED_SEALS.union(SealFlags::FUTURE_WRITE);
/// Magic number of tmpfs (`linux/magic.h`), which backs a memfd of small pages.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// A mapped region. Every pointer into it keeps it alive.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    length: usize,
    access: MapAccess,
    fd: OwnedFd,
}

// SAFETY: the mapping belongs to the process, not to a thread; it is unmapped once, by the last
// owner.
unsafe impl Send for Region {}
// SAFETY: `&Region` gives out atomics, or copies bytes by pointer. No reference to the memory
// itself exists.
unsafe impl Sync for Region {}

impl Region {
    /// Creates, maps and seals a zeroed region of at least `bytes` bytes. `name` appears in
    /// `/proc/PID/maps`.
    pub fn create(name: &str, bytes: usize, pages: PageKind) -> io::Result<Arc<Self>> {
        let huge = if pages == PageKind::HugeIfAvailable {
            Self::create_huge(name, bytes).ok()
        } else {
            None
        };
        huge.map_or_else(
            || Self::create_with(name, bytes.next_multiple_of(4096), MemfdFlags::empty()),
            Ok,
        )
    }

    fn create_huge(name: &str, bytes: usize) -> io::Result<Arc<Self>> {
        let bytes = bytes.next_multiple_of(HUGE_PAGE_BYTES);
        Self::create_with(name, bytes, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)
    }

    fn create_with(name: &str, bytes: usize, flags: MemfdFlags) -> io::Result<Arc<Self>> {
        let fd = memfd_create(
            name,
            flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        ftruncate(&fd, bytes as u64)?;
        let region = Self::map_fd(fd, bytes, MapAccess::Write)?; // reserves huge pages, or fails
        // After the last change of size, and before any other process has the descriptor.
        fcntl_add_seals(&region.fd, REQUIRED_SEALS)?;
        Ok(Arc::new(region))
    }

    /// Maps a received region of `bytes` bytes. Refuses one that could change its size, with
    /// `InvalidData`.
    pub fn open_sealed(fd: OwnedFd, bytes: usize, access: MapAccess) -> io::Result<Arc<Self>> {
        check_memfd(&fd, bytes, REQUIRED_SEALS)?;
        Ok(Arc::new(Self::map_fd(fd, bytes, access)?))
    }

    /// Maps a region for reading that only its creator can write; see [`check_read_only`].
    pub fn open_read_only(fd: OwnedFd, bytes: usize) -> io::Result<Arc<Self>> {
        check_read_only(&fd, bytes)?;
        Ok(Arc::new(Self::map_fd(fd, bytes, MapAccess::Read)?))
    }

    /// Creates a memfd that only this process can write. Receivers of the descriptor can map it
    /// read-only. The creator's own mapping stays writable.
    pub fn create_read_only_for_others(name: &str, bytes: usize) -> io::Result<Arc<Self>> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let bytes = bytes.next_multiple_of(4096);
        ftruncate(&fd, bytes as u64)?;
        // F_SEAL_FUTURE_WRITE spares existing mappings: map first, then seal
        let region = Self::map_fd(fd, bytes, MapAccess::Write)?;
        fcntl_add_seals(&region.fd, READ_ONLY_SEALS)?;
        Ok(Arc::new(region))
    }

    fn map_fd(fd: OwnedFd, length: usize, access: MapAccess) -> io::Result<Self> {
        let protection = match access {
            MapAccess::Write => ProtFlags::READ | ProtFlags::WRITE,
            MapAccess::Read => ProtFlags::READ,
        };
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                protection,
                MapFlags::SHARED,
                &fd,
                0,
            )?
        };
        let start = NonNull::new(start.cast::<u8>())
            .ok_or_else(|| io::Error::other("mapped at address 0"))?;
        // SAFETY: the range is the mapping just made; the advice changes no content. Failure only
        // costs speed.
        let _ = unsafe { madvise(start.as_ptr().cast(), length, Advice::LinuxHugepage) };
        Ok(Self {
            start,
            length,
            access,
            fd,
        })
    }

    /// Returns the bytes of the region, in whole pages.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the page size in bytes, as the kernel reports it for the memfd: 2 MiB for huge
    /// pages.
    pub fn page_size(&self) -> u64 {
        fstat(&self.fd)
            .ok()
            .and_then(|stat| u64::try_from(stat.st_blksize).ok())
            .unwrap_or(4096)
    }

    /// Returns false: the kernel maps no empty region.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns `count` atomics at `offset`. None when they lie outside, are misaligned, or the
    /// mapping is read-only.
    pub fn atomic_cells<T: AtomicCell>(
        self: &Arc<Self>,
        offset: u64,
        count: usize,
    ) -> Option<SharedRef<[T]>> {
        let bytes = count.checked_mul(size_of::<T>())?;
        let place = self.byte_ptr(offset, bytes)?;
        if self.access == MapAccess::Read || !place.cast::<T>().is_aligned() {
            return None;
        }
        let cells = NonNull::slice_from_raw_parts(place.cast::<T>(), count);
        // SAFETY: `place` says that the bytes lie within the mapping, which lives as long as the
        // Arc; it is aligned, and writable. Every pattern of bits is an atomic integer, and other
        // processes change it only as memory, too.
        Some(unsafe { SharedRef::new(cells, Arc::clone(self) as Arc<dyn Any + Send + Sync>) })
    }

    /// Returns one atomic; see [`Region::atomic_cells`].
    pub fn atomic_cell<T: AtomicCell>(self: &Arc<Self>, offset: u64) -> Option<SharedRef<T>> {
        self.atomic_cells::<T>(offset, 1)
            .map(|cells| cells.map(|cells| &cells[0]))
    }

    /// Returns a pointer to `bytes` bytes at `offset`; none when they end outside.
    /// Other processes may change them at any time: copy them, or hold a lease.
    pub fn byte_ptr(&self, offset: u64, bytes: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(bytes)?;
        // SAFETY: within the mapping, or one past its end, as just checked.
        (end <= self.length).then(|| unsafe { self.start.add(offset) })
    }

    /// Copies bytes out. False, and nothing copied, when they lie outside.
    pub fn read_bytes(&self, offset: u64, into: &mut [u8]) -> bool {
        let Some(place) = self.byte_ptr(offset, into.len()) else {
            return false;
        };
        // SAFETY: both ranges are valid for `into.len()` bytes and apart: no `&mut` of the mapping
        // exists. Another process may write meanwhile; then the copy is any mixture of bytes, which
        // callers check like all foreign data.
        unsafe { std::ptr::copy_nonoverlapping(place.as_ptr(), into.as_mut_ptr(), into.len()) };
        // Keeps the compiler from reading the mapping again where the copy is meant
        compiler_fence(Ordering::SeqCst);
        true
    }

    /// Returns a copy of some bytes; none when they lie outside.
    pub fn copy_bytes(&self, offset: u64, bytes: usize) -> Option<Vec<u8>> {
        let place = self.byte_ptr(offset, bytes)?;
        let mut copy = Vec::with_capacity(bytes);
        // SAFETY: as in `read_bytes`; afterwards the first `bytes` bytes of the vector, which has
        // room for them, are written.
        unsafe {
            std::ptr::copy_nonoverlapping(place.as_ptr(), copy.as_mut_ptr(), bytes);
            copy.set_len(bytes);
        }
        compiler_fence(Ordering::SeqCst); // as in `read_bytes`
        Some(copy)
    }

    /// Copies bytes in. False, and nothing copied, when they lie outside or the mapping is
    /// read-only.
    pub fn write_bytes(&self, offset: u64, bytes: &[u8]) -> bool {
        let place = self
            .byte_ptr(offset, bytes.len())
            .filter(|_| self.access == MapAccess::Write);
        let Some(place) = place else { return false };
        // SAFETY: as in `read_bytes`; the mapping is writable.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.as_ptr(), bytes.len()) };
        true
    }
}

impl AsFd for Region {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `map_fd`; everything that points into it kept an Arc,
        // so nothing is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

fn invalid_data(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Checks that `fd` is a memfd with these seals and of this size; otherwise fails with
/// `InvalidData`.
fn check_memfd(fd: impl AsFd, bytes: usize, seals: SealFlags) -> io::Result<()> {
    let there =
        fcntl_get_seals(&fd).map_err(|_| invalid_data("the file descriptor is not a memfd"))?;
    // Seals before the size: an unsealed memfd could change its size after the check.
    if !there.contains(REQUIRED_SEALS) {
        return Err(invalid_data(
            "the region is not sealed against shrinking, growing and further seals",
        ));
    }
    if !there.contains(seals) {
        return Err(invalid_data("the region is not sealed against writing"));
    }
    if u64::try_from(fstat(&fd)?.st_size) != Ok(bytes as u64) {
        return Err(invalid_data("the region has another size than reported"));
    }
    Ok(())
}

/// Checks that only the creator can write the memfd, and that no peer can remove pages; otherwise
/// fails with `InvalidData`. Huge pages are refused, too: reading an unfilled one raises SIGBUS
/// when none is left.
pub fn check_read_only(fd: impl AsFd, bytes: usize) -> io::Result<()> {
    check_memfd(&fd, bytes, READ_ONLY_SEALS)?;
    if fstatfs(&fd)?.f_type as u64 != TMPFS_MAGIC {
        return Err(invalid_data("the region has huge pages"));
    }
    Ok(())
}

/// Returns the bytes of memory that currently back a memfd.
pub fn backed_bytes(fd: impl AsFd) -> io::Result<u64> {
    // st_blocks counts 512-byte units, whatever the file system (stat(2)).
    Ok(u64::try_from(fstat(fd)?.st_blocks).unwrap_or(0) * 512)
}

/// Types that a region can be viewed as: atomics, for which every bit pattern is valid.
pub trait AtomicCell: sealed::SealedCell + Send + Sync + 'static {}
impl AtomicCell for AtomicU32 {}
impl AtomicCell for AtomicU64 {}

mod sealed {
    pub trait SealedCell {}
    impl SealedCell for super::AtomicU32 {}
    impl SealedCell for super::AtomicU64 {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    fn duplicate_fd(region: &Region) -> OwnedFd {
        region.as_fd().try_clone_to_owned().unwrap()
    }

    #[test]
    fn ranges_outside_the_mapping_are_refused() {
        let region = Region::create("np-test", 5000, PageKind::HugeIfAvailable).unwrap();
        let end = region.len() as u64;
        assert!(region.atomic_cells::<AtomicU64>(end - 8, 1).is_some());
        assert!(region.atomic_cells::<AtomicU64>(end - 8, 2).is_none());
        assert!(region.atomic_cells::<AtomicU64>(u64::MAX - 7, 1).is_none());
        assert!(
            region
                .atomic_cells::<AtomicU64>(0, usize::MAX / 4)
                .is_none()
        );
        assert!(
            region.atomic_cells::<AtomicU64>(4, 1).is_none(),
            "not aligned"
        );
        assert!(!region.read_bytes(end - 1, &mut [0; 2]) && !region.write_bytes(end, &[0]));
    }

    #[test]
    fn a_sealed_region_cannot_change_its_size() {
        let region = Region::create("np-test", 8192, PageKind::Small).unwrap();
        assert_eq!(ftruncate(&region.fd, 4096), Err(Errno::PERM));
        assert_eq!(ftruncate(&region.fd, 1 << 20), Err(Errno::PERM));
        assert_eq!(
            fcntl_add_seals(&region.fd, SealFlags::WRITE),
            Err(Errno::PERM)
        );
        let other = Region::open_sealed(duplicate_fd(&region), 8192, MapAccess::Write).unwrap();
        assert!(other.write_bytes(100, b"seen"));
        let mut seen = [0; 4];
        assert!(region.read_bytes(100, &mut seen) && &seen == b"seen");
    }

    #[test]
    fn files_and_unsealed_memfds_are_refused() {
        let refused = |fd: OwnedFd, bytes| {
            Region::open_sealed(fd, bytes, MapAccess::Read)
                .unwrap_err()
                .kind()
        };
        let memfd =
            || memfd_create("np-test", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        for missing in REQUIRED_SEALS {
            let fd = memfd();
            ftruncate(&fd, 4096).unwrap();
            fcntl_add_seals(&fd, REQUIRED_SEALS.difference(missing)).unwrap();
            assert_eq!(refused(fd, 4096), io::ErrorKind::InvalidData, "{missing:?}");
        }
        let region = Region::create("np-test", 4096, PageKind::Small).unwrap();
        assert_eq!(
            refused(duplicate_fd(&region), 8192),
            io::ErrorKind::InvalidData
        );
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(refused(file.into(), 4096), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_read_only_region_is_writable_for_its_creator_alone() {
        let region = Region::create_read_only_for_others("np-test", 4096).unwrap();
        assert!(region.write_bytes(0, b"mine"));
        assert!(Region::open_sealed(duplicate_fd(&region), 4096, MapAccess::Write).is_err());
        let reader = Region::open_sealed(duplicate_fd(&region), 4096, MapAccess::Read).unwrap();
        assert!(!reader.write_bytes(0, b"no") && reader.atomic_cells::<AtomicU32>(0, 1).is_none());
        assert_eq!(rustix::io::pwrite(&reader.fd, b"no", 0), Err(Errno::PERM));
        let again = rustix::fs::open(
            format!(
                "/proc/self/fd/{}",
                std::os::fd::AsRawFd::as_raw_fd(&reader.fd)
            ),
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        );
        if let Ok(again) = again {
            assert!(Region::open_sealed(again, 4096, MapAccess::Write).is_err());
        }
    }
}
