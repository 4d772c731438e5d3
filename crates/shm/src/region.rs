//! Sealed memory that processes share, and every pointer into it.
//!
//! A region is a memfd that can neither shrink nor grow: a peer that could shrink it would end its readers with SIGBUS. So
//! one that came from elsewhere is mapped only when the seals are there and the size is what was told.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::shared::Shared;
use crate::sync::{AtomicU32, AtomicU64};

/// What the pages are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Of the usual size.
    Small,
    /// Reserved huge pages, or small ones when there are none. Only for a domain whose parties trust each other with
    /// availability: who can write can punch a hole, and a huge page that is not there to fill it again ends in SIGBUS.
    HugeIfThere,
}

/// What may be done with a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read and write.
    Write,
    /// Read; a write would end the process.
    Read,
}

const HUGE_PAGE: usize = 2 << 20;
/// Without these a region is refused.
const NEEDED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// With it nobody writes but through the mappings that were there before; it forbids punching holes, too.
const READ_ONLY: SealFlags = NEEDED.union(SealFlags::FUTURE_WRITE);
/// What a memfd of small pages lies on (`linux/magic.h`, tmpfs).
const SMALL_PAGES: u64 = 0x0102_1994;

/// A mapped region. Kept alive by everything that points into it.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    length: usize,
    access: Access,
    fd: OwnedFd,
}

// SAFETY: the mapping belongs to the process, not to a thread; it is unmapped once, by the last owner.
unsafe impl Send for Region {}
// SAFETY: `&Region` gives out atomics, or copies bytes by pointer between memory of which nobody holds references.
unsafe impl Sync for Region {}

impl Region {
    /// Makes, maps and seals one of at least `bytes` bytes, zeroed. `name` is seen in `/proc/PID/maps`.
    pub fn create(name: &str, bytes: usize, pages: Pages) -> io::Result<Arc<Self>> {
        let huge = if pages == Pages::HugeIfThere { Self::create_huge(name, bytes).ok() } else { None };
        huge.map_or_else(|| Self::create_with(name, bytes.next_multiple_of(4096), MemfdFlags::empty()), Ok)
    }

    fn create_huge(name: &str, bytes: usize) -> io::Result<Arc<Self>> {
        let bytes = bytes.next_multiple_of(HUGE_PAGE);
        Self::create_with(name, bytes, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)
    }

    fn create_with(name: &str, bytes: usize, flags: MemfdFlags) -> io::Result<Arc<Self>> {
        let fd = memfd_create(name, flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, bytes as u64)?;
        let region = Self::map(fd, bytes, Access::Write)?; // reserves huge pages, or fails
        fcntl_add_seals(&region.fd, NEEDED)?;
        Ok(Arc::new(region))
    }

    /// Maps a region that somebody else made and that should have `bytes` bytes. Refuses one that could change its size
    /// with `InvalidData`.
    pub fn open(fd: OwnedFd, bytes: usize, access: Access) -> io::Result<Arc<Self>> {
        vet(&fd, bytes, NEEDED)?;
        Ok(Arc::new(Self::map(fd, bytes, access)?))
    }

    /// Maps, for reading, a region that its maker alone can write; see [`vet_read_only`].
    pub fn open_read_only(fd: OwnedFd, bytes: usize) -> io::Result<Arc<Self>> {
        vet_read_only(&fd, bytes)?;
        Ok(Arc::new(Self::map(fd, bytes, Access::Read)?))
    }

    /// A memfd with these bytes that its maker alone can write: who gets the descriptor can map it only for reading. The
    /// maker's own mapping stays writable.
    pub fn create_read_only_for_others(name: &str, bytes: usize) -> io::Result<Arc<Self>> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let bytes = bytes.next_multiple_of(4096);
        ftruncate(&fd, bytes as u64)?;
        let region = Self::map(fd, bytes, Access::Write)?; // first mapped, then sealed
        fcntl_add_seals(&region.fd, READ_ONLY)?;
        Ok(Arc::new(region))
    }

    fn map(fd: OwnedFd, length: usize, access: Access) -> io::Result<Self> {
        let protection = match access {
            Access::Write => ProtFlags::READ | ProtFlags::WRITE,
            Access::Read => ProtFlags::READ,
        };
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
        let start = unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &fd, 0)? };
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        // SAFETY: the range is the mapping just made; the advice changes no content. Failure only costs speed.
        let _ = unsafe { madvise(start.as_ptr().cast(), length, Advice::LinuxHugepage) };
        Ok(Self { start, length, access, fd })
    }

    /// Bytes of the region, whole pages.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Bytes of one of its pages: what the kernel says of the memfd. 2 MiB for huge pages.
    pub fn page_size(&self) -> u64 {
        fstat(&self.fd).ok().and_then(|stat| u64::try_from(stat.st_blksize).ok()).unwrap_or(4096)
    }

    /// Never true: the kernel maps no empty region.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// `count` atomics at `offset`; nothing when they would lie outside, are not aligned, or the mapping is read-only.
    pub fn cells<T: Cell>(self: &Arc<Self>, offset: u64, count: usize) -> Option<Shared<[T]>> {
        let bytes = count.checked_mul(size_of::<T>())?;
        let place = self.place(offset, bytes)?;
        if self.access == Access::Read || !place.cast::<T>().is_aligned() {
            return None;
        }
        let cells = NonNull::slice_from_raw_parts(place.cast::<T>(), count);
        // SAFETY: `place` says that the bytes lie within the mapping, which lives as long as the Arc; it is aligned, and
        // writable. Every pattern of bits is an atomic integer, and other processes change it only as memory, too.
        Some(unsafe { Shared::new(cells, Arc::clone(self) as Arc<dyn Any + Send + Sync>) })
    }

    /// One atomic; see [`Region::cells`].
    pub fn cell<T: Cell>(self: &Arc<Self>, offset: u64) -> Option<Shared<T>> {
        self.cells::<T>(offset, 1).map(|cells| cells.map(|cells| &cells[0]))
    }

    /// Where `bytes` bytes at `offset` lie; nothing when they would end outside. Other processes may change what is there
    /// at any time: copy it, or hold a lease of it.
    pub fn place(&self, offset: u64, bytes: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(bytes)?;
        // SAFETY: within the mapping, or one past its end, as just checked.
        (end <= self.length).then(|| unsafe { self.start.add(offset) })
    }

    /// Copies bytes out. False, and nothing copied, when they would lie outside.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        let Some(place) = self.place(offset, into.len()) else { return false };
        // SAFETY: both ranges are valid for `into.len()` bytes and apart: nobody has a `&mut` of the mapping. Another process
        // may write meanwhile; then the copy is any mixture of bytes, which callers check like all foreign data.
        unsafe { std::ptr::copy_nonoverlapping(place.as_ptr(), into.as_mut_ptr(), into.len()) };
        compiler_fence(Ordering::SeqCst); // or the compiler may look at the mapping again, where it is asked for the copy
        true
    }

    /// Bytes as a copy; nothing when they would lie outside.
    pub fn copy(&self, offset: u64, bytes: usize) -> Option<Vec<u8>> {
        let place = self.place(offset, bytes)?;
        let mut copy = Vec::with_capacity(bytes);
        // SAFETY: as in `read`; afterwards the first `bytes` bytes of the vector, which has room for them, are written.
        unsafe {
            std::ptr::copy_nonoverlapping(place.as_ptr(), copy.as_mut_ptr(), bytes);
            copy.set_len(bytes);
        }
        compiler_fence(Ordering::SeqCst); // as in `read`
        Some(copy)
    }

    /// Copies bytes in. False, and nothing copied, when they would lie outside or the mapping is read-only.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let place = self.place(offset, bytes.len()).filter(|_| self.access == Access::Write);
        let Some(place) = place else { return false };
        // SAFETY: as in `read`; the mapping is writable.
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
        // SAFETY: this is the mapping made in `map`; everything that points into it kept an Arc, so nothing is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Whether `fd` is a memfd with these seals and of this size: `InvalidData` when not.
fn vet(fd: impl AsFd, bytes: usize, seals: SealFlags) -> io::Result<()> {
    let there = fcntl_get_seals(&fd).map_err(|_| refused("the descriptor is no memfd"))?;
    if !there.contains(NEEDED) {
        return Err(refused("the region is not sealed against shrinking, growing and further seals"));
    }
    if !there.contains(seals) {
        return Err(refused("the region is not sealed against writing"));
    }
    if u64::try_from(fstat(&fd)?.st_size) != Ok(bytes as u64) {
        return Err(refused("the region has another size than was told"));
    }
    Ok(())
}

/// Whether nobody but its maker can write in what `fd` names, and nobody can take pages from its readers: `InvalidData`
/// when not. Huge pages are refused, too: one that was never filled ends its reader with SIGBUS where none is left.
pub fn vet_read_only(fd: impl AsFd, bytes: usize) -> io::Result<()> {
    vet(&fd, bytes, READ_ONLY)?;
    if fstatfs(&fd)?.f_type as u64 != SMALL_PAGES {
        return Err(refused("the region has huge pages"));
    }
    Ok(())
}

/// Bytes of memory behind a memfd at this moment.
pub fn backed(fd: impl AsFd) -> io::Result<u64> {
    Ok(u64::try_from(fstat(fd)?.st_blocks).unwrap_or(0) * 512)
}

/// What a place in a region can be seen as: atomics, for which any bits are a value.
pub trait Cell: sealed::Sealed + Send + Sync + 'static {}
impl Cell for AtomicU32 {}
impl Cell for AtomicU64 {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::AtomicU32 {}
    impl Sealed for super::AtomicU64 {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    fn copy_of(region: &Region) -> OwnedFd {
        region.as_fd().try_clone_to_owned().unwrap()
    }

    #[test]
    fn nothing_lies_outside() {
        let region = Region::create("np-test", 5000, Pages::HugeIfThere).unwrap();
        let end = region.len() as u64;
        assert!(region.cells::<AtomicU64>(end - 8, 1).is_some());
        assert!(region.cells::<AtomicU64>(end - 8, 2).is_none());
        assert!(region.cells::<AtomicU64>(u64::MAX - 7, 1).is_none());
        assert!(region.cells::<AtomicU64>(0, usize::MAX / 4).is_none());
        assert!(region.cells::<AtomicU64>(4, 1).is_none(), "not aligned");
        assert!(!region.read(end - 1, &mut [0; 2]) && !region.write(end, &[0]));
    }

    #[test]
    fn sealed_ones_cannot_change_their_size() {
        let region = Region::create("np-test", 8192, Pages::Small).unwrap();
        assert_eq!(ftruncate(&region.fd, 4096), Err(Errno::PERM));
        assert_eq!(ftruncate(&region.fd, 1 << 20), Err(Errno::PERM));
        assert_eq!(fcntl_add_seals(&region.fd, SealFlags::WRITE), Err(Errno::PERM));
        let other = Region::open(copy_of(&region), 8192, Access::Write).unwrap();
        assert!(other.write(100, b"seen"));
        let mut seen = [0; 4];
        assert!(region.read(100, &mut seen) && &seen == b"seen");
    }

    #[test]
    fn others_are_refused() {
        let refused = |fd: OwnedFd, bytes| Region::open(fd, bytes, Access::Read).unwrap_err().kind();
        let memfd = || memfd_create("np-test", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        for missing in NEEDED {
            let fd = memfd();
            ftruncate(&fd, 4096).unwrap();
            fcntl_add_seals(&fd, NEEDED.difference(missing)).unwrap();
            assert_eq!(refused(fd, 4096), io::ErrorKind::InvalidData, "{missing:?}");
        }
        let region = Region::create("np-test", 4096, Pages::Small).unwrap();
        assert_eq!(refused(copy_of(&region), 8192), io::ErrorKind::InvalidData);
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(refused(file.into(), 4096), io::ErrorKind::InvalidData);
    }

    #[test]
    fn read_only_means_for_everybody_else() {
        let region = Region::create_read_only_for_others("np-test", 4096).unwrap();
        assert!(region.write(0, b"mine"));
        assert!(Region::open(copy_of(&region), 4096, Access::Write).is_err());
        let reader = Region::open(copy_of(&region), 4096, Access::Read).unwrap();
        assert!(!reader.write(0, b"no") && reader.cells::<AtomicU32>(0, 1).is_none());
        assert_eq!(rustix::io::pwrite(&reader.fd, b"no", 0), Err(Errno::PERM));
        let again = rustix::fs::open(
            format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader.fd)),
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        );
        if let Ok(again) = again {
            assert!(Region::open(again, 4096, Access::Write).is_err());
        }
    }
}
